//! The U-Net of a run: fresh from its configuration, from a model folder, or from the run's last checkpoint.

use tch::{Device, Tensor};
use tidemill_models::{ModelFolder, SchedulerConfig, Start, UNet2DConditionModel, UNetConfig};
use tidemill_torch::guard;
use tidemill_train::{Checkpoints, schedule_of};

use crate::error::Result;
use crate::run_file::Run;

/// Which weights to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Weights {
    /// Averaged weights of the last checkpoint, where averaging has begun.
    Ema,
    /// The last checkpoint's weights without averaging.
    Raw,
    /// What training starts from.
    Untrained,
}

/// The U-Net that training starts from: the folder's weights, or a fresh initialisation drawn from the run's seed.
///
/// # Errors
/// If the configuration is not supported or the weights do not fit it.
pub fn initial(run: &Run, folder: &ModelFolder, device: Device) -> Result<UNet2DConditionModel> {
    if folder.has_unet_weights() {
        return Ok(UNet2DConditionModel::load(&folder.unet(), device)?);
    }
    let config = UNetConfig::read(&folder.unet().join("config.json"))?;
    tch::manual_seed(i64::from_ne_bytes(run.file.seed.to_ne_bytes()));
    Ok(UNet2DConditionModel::new(config, device, Start::Random)?)
}

/// The U-Net with the weights asked for, and the step they are of.
///
/// # Errors
/// If there is no checkpoint, or it is of another model.
pub fn load(
    run: &Run,
    folder: &ModelFolder,
    weights: Weights,
    device: Device,
) -> Result<(UNet2DConditionModel, u64)> {
    if weights == Weights::Untrained {
        return Ok((initial(run, folder, device)?, 0));
    }
    let (step, tensors) = checkpoint_weights(run, weights)?;
    let config = UNetConfig::read(&folder.unet().join("config.json"))?;
    let unet = UNet2DConditionModel::new(config, device, Start::Empty)?;
    let mut stored: std::collections::HashMap<String, Tensor> = tensors.into_iter().collect();
    for (name, mut parameter) in unet.params().named() {
        let fitting = stored.remove(&name).filter(|tensor| tensor.size() == parameter.size());
        let Some(tensor) = fitting else {
            let message = format!(
                "the checkpoint is of another U-Net than {}: {name} differs",
                folder.unet().display()
            );
            return Err(run.refuse("models.path", message));
        };
        guard(|| tch::no_grad(|| parameter.copy_(&tensor))).map_err(tidemill_models::Error::from)?;
    }
    Ok((unet, step))
}

/// The last checkpoint's weights, f32, by parameter name.
///
/// # Errors
/// If there is no checkpoint.
pub fn checkpoint_weights(run: &Run, weights: Weights) -> Result<(u64, Vec<(String, Tensor)>)> {
    let checkpoints = Checkpoints::open(&run.file.checkpoint, run.output().as_ref())?;
    Ok(checkpoints.weights(weights == Weights::Ema)?)
}

/// The noise schedule that a run trains and samples with.
///
/// # Errors
/// If the folder's scheduler is not supported.
pub fn schedule(run: &Run, folder: &ModelFolder) -> Result<SchedulerConfig> {
    Ok(schedule_of(&run.file.train, &folder.scheduler()?))
}
