//! Checks before `tidemill run` starts to encode. Without them, these mistakes would appear only
//! after all pairs are encoded.

use tch::Device;
use tidemill_data::tokenizer::CONTEXT;
use tidemill_models::sampler::Sampler;
use tidemill_models::{
    NoiseSchedule, ParamInit, SampleShape, TextWidths, TrainableDenoiser, UNet2DConditionModel, UNetConfig,
    VaeConfig, check_weights,
};
use tidemill_train::{ValidationConfig, training_scheduler_config};

use crate::error::Result;
use crate::online::EncodingMode;
use crate::run_file::Run;

/// Refuses a run with a validation loss if its dataset will hold no rows out.
///
/// # Errors
/// If `train.validation` is set, but no rows are held out.
pub fn check_validation(run: &Run, mode: EncodingMode) -> Result<()> {
    let train = &run.file.train;
    let uses_own_dataset = |config: &ValidationConfig| config.dataset.is_none() && train.mix.is_empty();
    let needs_held_out_rows = train.validation.as_ref().is_some_and(uses_own_dataset);
    if needs_held_out_rows && mode == EncodingMode::Offline && run.file.validation.share == 0.0 {
        let message =
            "no rows are held out for the validation loss: set [validation] share, or name a dataset";
        return Err(run.refuse("train.validation", message));
    }
    Ok(())
}

/// Refuses models that the trainer or the sampler does not accept. Reads the models' configurations
/// and the shapes of the U-Net's weights.
///
/// # Errors
/// If the parts of the model folder do not fit together, or the sampler cannot run with the noise
/// schedule.
pub fn check_models(run: &Run) -> Result<()> {
    let models = run.models()?;
    let vae = VaeConfig::read(&models.vae().join("config.json"))?;
    let text = TextWidths::join(&models.text_widths()?);
    let config = UNetConfig::read(&models.unet().join("config.json"))?;
    let unet = UNet2DConditionModel::new(config, Device::Cpu, ParamInit::Empty)?;
    let side = i64::from(run.resolution()) / vae.downscale_factor();
    unet.forward_flops(SampleShape {
        latents: [vae.latent_channels, side, side],
        text: [CONTEXT as i64, text.hidden],
        pooled: text.pooled,
        has_time_ids: unet.config().takes_time_ids(),
    })?;
    if models.has_unet_weights()? {
        check_weights(unet.params(), &models.unet())?;
    }
    let sample = &run.file.sample;
    let scheduler = training_scheduler_config(&run.file.train, &models.scheduler()?)?;
    if sample.has_prompts() {
        Sampler::new(sample.method, &NoiseSchedule::new(scheduler, Device::Cpu), sample.steps)?;
    }
    Ok(())
}
