//! Pictures drawn during training: fixed prompts, fixed noise, so that grids of different steps show
//! what the model learnt in between.

use crate::Error;
use crate::config::PreviewConfig;
use crate::evaluation::image_grid as grid;
use crate::metrics::MetricsLog;
use crate::objective::philox::{Draw, Purpose};
use image::RgbImage;
use std::path::{Path, PathBuf};
use tch::{Device, Kind, Tensor};
use tidemill_models::sampler::{Conditioning, Sampler, sample_latents};
use tidemill_models::{AutoencoderKl, Denoiser, NoiseSchedule, SchedulerConfig};

/// Draws pictures from prompts whose embeddings are given.
pub struct PreviewSampler {
    /// `[train.preview]`
    pub config: PreviewConfig,
    /// The run's seed, from which the initial noise is drawn.
    pub seed: u64,
    /// Embeddings of the prompts [N, L, D], f32.
    pub text: Tensor,
    /// Embedding of the empty prompt [1, L, D], f32.
    pub empty: Tensor,
    /// The VAE that decodes, in f32.
    pub vae: AutoencoderKl,
    /// Side in pixels; unset: that of the phase.
    pub resolution: Option<u32>,
    /// Pictures that are drawn at a time.
    pub batch_size: usize,
    /// Where the grids go; set by the trainer.
    pub dir: Option<PathBuf>,
}

impl PreviewSampler {
    pub(crate) fn open(&mut self, output: &Path) -> Result<(), Error> {
        let dir = output.join("previews");
        std::fs::create_dir_all(&dir).map_err(Error::io(&dir))?;
        self.dir = Some(dir);
        Ok(())
    }

    pub(crate) fn due(&self, step: u64) -> bool {
        self.config.every > 0 && step.is_multiple_of(self.config.every) && !self.config.prompts.is_empty()
    }

    /// The pictures of a phase at this resolution.
    pub(crate) fn draw(
        &self,
        denoiser: &dyn Denoiser,
        schedule: &SchedulerConfig,
        kind: Kind,
        resolution: u32,
    ) -> Result<RgbImage, Error> {
        let size = i64::from(self.resolution.unwrap_or(resolution)) / self.vae.config().downscale_factor();
        let PreviewConfig { method, steps, guidance, ref prompts, .. } = self.config;
        let (device, unconditional) = (self.text.device(), &self.empty.to_kind(kind));
        let schedule = NoiseSchedule::new(schedule.clone(), device);
        let noise = draw_initial_noise(self.seed, prompts.len(), &self.vae, size, device);
        let mut pictures = Vec::with_capacity(prompts.len());
        for first in (0..prompts.len()).step_by(self.batch_size) {
            let some = self.batch_size.min(prompts.len() - first) as i64;
            let [text, noise] = [&self.text, &noise].map(|all| all.narrow(0, first as i64, some));
            let conditioning =
                Conditioning { text: &text.to_kind(kind), unconditional, guidance_scale: guidance };
            let latents = sample_latents(
                denoiser,
                Sampler::new(method, &schedule, steps)?,
                &noise,
                &conditioning,
                |_| (),
            )?;
            pictures.extend(grid::to_images(&decode_latents(&self.vae, &latents)?));
        }
        Ok(grid::make_grid(&pictures, prompts, (prompts.len() as f64).sqrt().ceil() as u32))
    }

    pub(crate) fn save(&self, grid: &RgbImage, step: u64, log: &mut MetricsLog) -> Result<PathBuf, Error> {
        let dir = self.dir.clone().unwrap_or_default();
        let path = dir.join(format!("step-{step:08}.png"));
        let unwritable = |e: image::ImageError| Error::Io {
            path: path.clone(),
            source: std::io::Error::other(e.to_string()),
        };
        let png = grid::encode_png(grid).map_err(unwritable)?;
        std::fs::write(&path, &png).map_err(Error::io(&path))?;
        log.picture(step, &png, grid.dimensions())?;
        Ok(path)
    }
}

/// Initial noise [N, C, size, size] of `count` pictures: the i-th depends on the seed and i only.
pub fn draw_initial_noise(seed: u64, count: usize, vae: &AutoencoderKl, size: i64, device: Device) -> Tensor {
    let channels = vae.config().latent_channels;
    let per_picture = usize::try_from(channels * size * size).unwrap_or(0);
    let mut numbers = vec![0f32; per_picture * count];
    for (i, picture) in (0u64..).zip(numbers.chunks_mut(per_picture.max(1))) {
        Draw::new(seed, 0, i, Purpose::Picture).normal(picture);
    }
    let count = i64::try_from(count).unwrap_or(0);
    Tensor::from_slice(&numbers).reshape([count, channels, size, size]).to_device(device)
}

/// Latents in the U-Net's scale to images in [-1, 1]: undoes the scaling factor, then decodes.
///
/// # Errors
/// If libtorch fails (out of memory).
pub fn decode_latents(vae: &AutoencoderKl, latents: &Tensor) -> Result<Tensor, Error> {
    Ok(tidemill_torch::guard(|| tch::no_grad(|| vae.decode(&(latents / vae.config().scaling_factor))))?)
}
