//! The models and embeddings for `train.preview`: images that are drawn during training.

use tch::{Device, Kind};
use tidemill_models::{AutoencoderKl, ModelFolder};
use tidemill_train::PreviewSampler;

use crate::error::Result;
use crate::run_file::Run;
use crate::sampling::TextEmbedder;

/// Loads what previews need. Returns `None` if the run draws no previews.
///
/// # Errors
/// If the VAE, the text encoder or the tokenizer cannot be loaded.
pub fn load_preview_sampler(
    run: &Run,
    models: &ModelFolder,
    device: Device,
) -> Result<Option<PreviewSampler>> {
    let Some(config) = run.file.train.preview.clone().filter(|c| c.every > 0 && !c.prompts.is_empty()) else {
        return Ok(None);
    };
    let embedder = TextEmbedder::load(run, models, device)?;
    let vae = AutoencoderKl::load(&models.vae(), device, Kind::Float)?;
    Ok(Some(PreviewSampler {
        seed: run.file.seed,
        text: embedder.embed(&config.prompts)?,
        empty: embedder.embed(&[String::new()])?,
        resolution: run.file.sample.resolution,
        batch_size: run.file.sample.batch_size,
        vae,
        config,
    }))
}
