//! Pictures from prompts: tokenizer, text encoder, U-Net, sampler and VAE put together, and `[sample]`, which says how.

use image::RgbImage;
use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};
use tidemill_data::ClipTokenizer;
use tidemill_models::sampler::{Conditioning, Sampler, SamplerMethod, sample_latents};
use tidemill_models::{
    AutoencoderKl, ClipTextModel, ModelFolder, NoiseSchedule, SchedulerConfig, UNet2DConditionModel,
};
use tidemill_torch::guard;
use tidemill_train::{decode_latents, draw_initial_noise, image_grid as grid};

use crate::encode::ComputeDtype;
use crate::error::Result;

/// `[sample]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SampleConfig {
    /// The prompts, one picture each.
    pub prompts: Vec<String>,
    /// Prompts of the toy world's held-out combinations to draw besides; their pictures are scored by rule.
    pub scenes: usize,
    /// Side in pixels; unset: that of the last phase.
    pub resolution: Option<u32>,
    /// Sampler.
    pub method: SamplerMethod,
    /// Sampler steps.
    pub steps: usize,
    /// Classifier-free guidance scale; 1 switches it off.
    pub guidance: f64,
    /// Pictures in one forward pass.
    pub batch_size: usize,
    /// Number format of the U-Net.
    pub dtype: ComputeDtype,
    /// Whether to use the averaged weights, if the run has any.
    pub ema: bool,
    /// The checkpoint whose weights are drawn with and exported; unset: the newest.
    pub step: Option<u64>,
}

impl Default for SampleConfig {
    fn default() -> Self {
        Self {
            prompts: Vec::new(),
            scenes: 0,
            resolution: None,
            method: SamplerMethod::Ddim,
            steps: 25,
            guidance: 5.0,
            batch_size: 16,
            dtype: ComputeDtype::F32,
            ema: true,
            step: None,
        }
    }
}

impl SampleConfig {
    /// Checks the section on its own; an error is a key and what is wrong with its value.
    pub(crate) fn validate(&self) -> std::result::Result<(), (&'static str, String)> {
        if self.steps == 0 || self.steps >= 1000 {
            return Err(("sample.steps", format!("{} is not between 1 and 999", self.steps)));
        }
        if self.batch_size == 0 {
            return Err(("sample.batch_size", "must be at least 1".into()));
        }
        if !self.guidance.is_finite() {
            return Err(("sample.guidance", "must be a number".into()));
        }
        Ok(())
    }
}

/// Prompts to embeddings.
pub struct TextEmbedder {
    tokenizer: ClipTokenizer,
    text_encoder: ClipTextModel,
    device: Device,
}

impl TextEmbedder {
    /// Loads tokenizer and text encoder (f32).
    ///
    /// # Errors
    /// If a part is missing or not supported.
    pub fn load(models: &ModelFolder, device: Device) -> Result<Self> {
        Ok(Self {
            tokenizer: ClipTokenizer::open(&models.tokenizer())?,
            text_encoder: ClipTextModel::load(&models.text_encoder(), device, Kind::Float)?,
            device,
        })
    }

    /// Embeddings [N, 77, D] of the prompts, f32.
    ///
    /// # Errors
    /// A failure of libtorch.
    pub fn embed(&self, prompts: &[String]) -> Result<Tensor> {
        let mut ids = Vec::new();
        for prompt in prompts {
            ids.extend(self.tokenizer.encode(prompt).map(i64::from));
        }
        let rows = prompts.len() as i64;
        let forward = || {
            let ids = Tensor::from_slice(&ids).view([rows, -1]).to_device(self.device);
            tch::no_grad(|| self.text_encoder.forward(&ids))
        };
        guard(forward).map_err(|e| tidemill_models::Error::from(e).into())
    }
}

/// All that is needed to draw.
pub struct Generator {
    /// Embeds the prompts.
    pub text: TextEmbedder,
    /// Decodes latents, f32.
    pub vae: AutoencoderKl,
    /// Denoises.
    pub unet: UNet2DConditionModel,
    /// The noise schedule that the U-Net was trained with.
    pub scheduler: SchedulerConfig,
}

impl Generator {
    /// Draws one picture of `resolution` pixels a side per prompt. The i-th depends on the seed, i and the prompt only.
    ///
    /// # Errors
    /// A sampler that cannot run with this schedule, or a failure of libtorch.
    pub fn draw(
        &self,
        prompts: &[String],
        config: &SampleConfig,
        resolution: u32,
        seed: u64,
        mut on_step: impl FnMut(usize),
    ) -> Result<Vec<RgbImage>> {
        let kind = config.dtype.to_kind();
        self.unet.params().set_kind(kind);
        let device = self.unet.params().device();
        let schedule = NoiseSchedule::new(self.scheduler.clone(), device);
        let unconditional = self.text.embed(&[String::new()])?.to_kind(kind);
        let noise = self.noise(prompts.len(), resolution, seed);
        let mut pictures = Vec::with_capacity(prompts.len());
        for (i, batch) in prompts.chunks(config.batch_size).enumerate() {
            let text = self.text.embed(batch)?.to_kind(kind);
            let noise = noise.narrow(0, (i * config.batch_size) as i64, batch.len() as i64);
            let sampler = Sampler::new(config.method, &schedule, config.steps)?;
            let conditioning =
                Conditioning { text: &text, unconditional: &unconditional, guidance_scale: config.guidance };
            let latents =
                sample_latents(&self.unet, sampler, &noise, &conditioning, |_| on_step(batch.len()))?;
            pictures.extend(grid::to_images(&decode_latents(&self.vae, &latents)?));
        }
        Ok(pictures)
    }

    /// The noise that pictures begin with: [N, C, h, w], f32.
    pub fn noise(&self, count: usize, resolution: u32, seed: u64) -> Tensor {
        let size = i64::from(resolution) / self.vae.config().downscale_factor();
        draw_initial_noise(seed, count, &self.vae, size, self.unet.params().device())
    }
}
