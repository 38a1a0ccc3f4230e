//! Checks before `tidemill run` starts to encode. Without them, these mistakes would appear only
//! after all pairs are encoded.

use tch::Device;
use tidemill_data::tokenizer::CONTEXT;
use tidemill_models::sampler::Sampler;
use tidemill_models::{DenoiserConfig, ParamInit, SampleShape, VaeConfig, check_weights};
use tidemill_train::ValidationConfig;

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
/// and the shapes of the network's weights.
///
/// # Errors
/// If the parts of the model folder do not fit together, or the sampler cannot run with the noise
/// schedule.
pub fn check_models(run: &Run) -> Result<()> {
    let models = run.models()?;
    let vae = VaeConfig::read(&models.vae().join("config.json"))?;
    let config = DenoiserConfig::read(&models)?;
    let join = run.text_join(&models)?;
    let text = join.join_widths(&models.text_widths()?);
    let network = config.build(Device::Cpu, ParamInit::Empty)?;
    let side = i64::from(run.resolution()) / vae.downscale_factor();
    network.forward_flops(SampleShape {
        latents: [vae.latent_channels, side, side],
        text: [join.join_tokens(CONTEXT as i64), text.hidden],
        pooled: text.pooled,
        has_time_ids: config.takes_time_ids(),
    })?;
    if models.has_denoiser_weights()? {
        check_weights(network.params(), &models.denoiser())?;
    }
    let sample = &run.file.sample;
    let scheduler = run.training_schedule(&models)?;
    if sample.has_prompts() {
        Sampler::check(sample.method, &scheduler, sample.steps)?;
    }
    Ok(())
}
