//! The network with the weights that training starts with.

use tch::Device;
use tidemill_models::{DenoiserConfig, ModelFolder, ParamInit, TrainableDenoiser};

use crate::error::Result;
use crate::run_file::Run;

/// Loads the model folder's U-Net or transformer. If the folder has no weights, creates random ones from the run's
/// seed.
///
/// # Errors
/// If the configuration is not supported, or the weights do not fit it.
pub fn load_initial_denoiser(
    run: &Run,
    models: &ModelFolder,
    device: Device,
) -> Result<Box<dyn TrainableDenoiser>> {
    let config = DenoiserConfig::read(models)?;
    if models.has_denoiser_weights()? {
        return Ok(config.load(models, device)?);
    }
    tch::manual_seed(run.file.seed as i64);
    Ok(config.build(device, ParamInit::Random)?)
}
