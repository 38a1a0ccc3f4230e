//! Pictures drawn during training: fixed prompts, fixed noise, so that grids of different steps show
//! what the model learnt in between.

use crate::config::PreviewConfig;
use crate::metrics::MetricsLog;
use crate::philox::{Draw, Purpose};
use crate::{Error, grid};
use image::RgbImage;
use std::path::{Path, PathBuf};
use tch::{Device, Kind, Tensor};
use tidemill_models::sampler::{Conditioning, Sampler, sample};
use tidemill_models::{AutoencoderKl, Denoiser, NoiseSchedule, SchedulerConfig};

/// Draws pictures from prompts whose embeddings are given.
pub struct Preview {
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
    /// Where the grids go; set by the trainer.
    pub dir: Option<PathBuf>,
}

impl Preview {
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
        let size = i64::from(self.resolution.unwrap_or(resolution)) / self.vae.config().downscale();
        let PreviewConfig { method, steps, guidance, .. } = self.config;
        let device = self.text.device();
        let schedule = NoiseSchedule::new(schedule.clone(), device);
        let (text, empty) = (self.text.to_kind(kind), self.empty.to_kind(kind));
        let latents = sample(
            denoiser,
            Sampler::new(method, &schedule, steps)?,
            &initial_noise(self.seed, self.config.prompts.len(), &self.vae, size, device),
            &Conditioning { text: &text, unconditional: &empty, guidance },
            |_| (),
        )?;
        let images = decode(&self.vae, &latents)?;
        let columns = (self.config.prompts.len() as f64).sqrt().ceil() as u32;
        Ok(grid::draw(&grid::pictures(&images), &self.config.prompts, columns))
    }

    pub(crate) fn save(&self, grid: &RgbImage, step: u64, log: &mut MetricsLog) -> Result<PathBuf, Error> {
        let dir = self.dir.clone().unwrap_or_default();
        let path = dir.join(format!("step-{step:08}.png"));
        let unwritable = |e: image::ImageError| Error::Io {
            path: path.clone(),
            source: std::io::Error::other(e.to_string()),
        };
        let png = grid::png(grid).map_err(unwritable)?;
        std::fs::write(&path, &png).map_err(Error::io(&path))?;
        log.picture(step, &png, grid.dimensions())?;
        Ok(path)
    }
}

/// Initial noise [N, C, size, size] of `count` pictures: the i-th depends on the seed and i only.
pub fn initial_noise(seed: u64, count: usize, vae: &AutoencoderKl, size: i64, device: Device) -> Tensor {
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
pub fn decode(vae: &AutoencoderKl, latents: &Tensor) -> Result<Tensor, Error> {
    Ok(tidemill_torch::guard(|| tch::no_grad(|| vae.decode(&(latents / vae.config().scaling_factor))))?)
}
