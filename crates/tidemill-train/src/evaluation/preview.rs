//! Previews: images drawn during training from fixed prompts and fixed noise, so that grids of
//! different steps show what the model learned in between.

use std::path::{Path, PathBuf};

use image::RgbImage;
use tch::{Device, Kind, Tensor};
use tidemill_models::sampler::{Conditioning, Sampler, sample_latents};
use tidemill_models::{AutoencoderKl, Denoiser, NoiseSchedule, SchedulerConfig, TextStates};
use tidemill_torch::guard;

use crate::Error;
use crate::config::PreviewConfig;
use crate::evaluation::image_grid;
use crate::metrics::metrics_log::MetricsLog;
use crate::objective::philox::{Draw, Purpose};
use crate::observer::Observer;

/// Draws previews from prompts whose text embeddings are given.
pub struct PreviewSampler {
    /// `[train.preview]`
    pub config: PreviewConfig,
    /// The run's seed, from which the initial noise is drawn.
    pub seed: u64,
    /// Text of the N prompts, f32.
    pub text: TextStates,
    /// Text of the empty prompt, f32.
    pub empty: TextStates,
    /// The VAE that decodes, in f32.
    pub vae: AutoencoderKl,
    /// Width and height of the images in pixels; unset: the phase's resolution.
    pub resolution: Option<u32>,
    /// Number of images that are drawn at once.
    pub batch_size: usize,
}

impl PreviewSampler {
    /// Whether a grid is drawn after this step.
    pub(crate) fn is_due(&self, step: u64) -> bool {
        self.config.every > 0 && step.is_multiple_of(self.config.every) && !self.config.prompts.is_empty()
    }

    /// Draws a grid with one image per prompt. `kind` is the dtype that the denoiser computes in,
    /// `resolution` that of the phase.
    ///
    /// # Errors
    /// If the sampler does not fit the schedule, or libtorch fails (out of memory).
    pub(crate) fn draw_grid(
        &self,
        denoiser: &dyn Denoiser,
        schedule: &SchedulerConfig,
        kind: Kind,
        resolution: u32,
    ) -> Result<RgbImage, Error> {
        guard(|| self.draw_unguarded(denoiser, schedule, kind, resolution)).map_err(Error::from).flatten()
    }

    fn draw_unguarded(
        &self,
        denoiser: &dyn Denoiser,
        schedule: &SchedulerConfig,
        kind: Kind,
        resolution: u32,
    ) -> Result<RgbImage, Error> {
        let size = i64::from(self.resolution.unwrap_or(resolution)) / self.vae.config().downscale_factor();
        let PreviewConfig { method, steps, guidance, ref prompts, .. } = self.config;
        let side = self.resolution.unwrap_or(resolution);
        let conditions = self.text.to_conditions(kind, [side; 2]);
        let (device, unconditional) = (conditions.text.device(), &self.empty.to_conditions(kind, [side; 2]));
        let schedule = NoiseSchedule::new(schedule.clone(), device);
        let numbers: Vec<u64> = (0..prompts.len() as u64).collect();
        let noise = draw_initial_noise(self.seed, &numbers, &self.vae, size, device);
        let image_seq_len = denoiser.image_seq_len([size; 2]);
        let mut images = Vec::with_capacity(prompts.len());
        for first in (0..prompts.len()).step_by(self.batch_size) {
            let count = self.batch_size.min(prompts.len() - first) as i64;
            let rows = |all: &Tensor| all.narrow(0, first as i64, count);
            let (conditions, noise) = (&conditions.map(rows), rows(&noise));
            let conditioning = Conditioning { conditions, unconditional, guidance_scale: guidance };
            let latents = sample_latents(
                denoiser,
                Sampler::new(method, &schedule, steps, image_seq_len)?,
                &noise,
                &conditioning,
                |_| (),
            )?;
            images.extend(image_grid::to_images(&decode_latents(&self.vae, &latents)?));
        }
        let columns = (prompts.len() as f64).sqrt().ceil() as u32;
        Ok(image_grid::make_grid(&images, prompts, columns))
    }
}

/// Creates the folder for previews under `output`.
///
/// # Errors
/// If the folder cannot be created.
pub(crate) fn create_preview_folder(output: &Path) -> Result<(), Error> {
    let folder = preview_folder(output);
    std::fs::create_dir_all(&folder).map_err(Error::io(&folder))
}

/// Writes a grid and reports where it is, or why there is none. A failed preview does not end a
/// run, because memory may suffice for steps and not for previews.
pub(crate) fn report_preview(
    grid: Result<RgbImage, Error>,
    step: u64,
    output: &Path,
    log: &mut MetricsLog,
    observer: &mut dyn Observer,
) {
    let message = match grid.map(|grid| save_preview(&grid, step, output, log)) {
        Ok(Ok(path)) => {
            observer.on_preview(step, &path);
            format!("previews of step {step}: {}", path.display())
        }
        Ok(Err(problem)) => format!("previews of step {step} cannot be written: {problem}"),
        Err(problem) => format!("previews of step {step} cannot be drawn: {problem}"),
    };
    observer.log(&message);
}

/// Writes a grid as PNG below `output`, and to TensorBoard. Returns the path of the PNG.
///
/// # Errors
/// If a file cannot be written.
fn save_preview(grid: &RgbImage, step: u64, output: &Path, log: &mut MetricsLog) -> Result<PathBuf, Error> {
    let path = preview_folder(output).join(format!("step-{step:08}.png"));
    let encode_error =
        |e: image::ImageError| Error::Io { path: path.clone(), source: std::io::Error::other(e.to_string()) };
    let png = image_grid::encode_png(grid).map_err(encode_error)?;
    std::fs::write(&path, &png).map_err(Error::io(&path))?;
    log.write_preview(step, &png, grid.dimensions())?;
    Ok(path)
}

fn preview_folder(output: &Path) -> PathBuf {
    output.join("previews")
}

/// Initial noise [N, C, size, size] of the images with these `numbers`, f32. The noise of an image
/// depends on the seed and its number only.
pub fn draw_initial_noise(
    seed: u64,
    numbers: &[u64],
    vae: &AutoencoderKl,
    size: i64,
    device: Device,
) -> Tensor {
    let channels = vae.config().latent_channels;
    let values_per_image = usize::try_from(channels * size * size).unwrap_or(0);
    let mut values = vec![0f32; values_per_image * numbers.len()];
    for (number, image) in numbers.iter().zip(values.chunks_mut(values_per_image.max(1))) {
        Draw::new(seed, 0, *number, Purpose::InitialNoise).fill_normal(image);
    }
    Tensor::from_slice(&values).reshape([numbers.len() as i64, channels, size, size]).to_device(device)
}

/// Decodes latents [N, C, h, w] in the denoiser's scale to images [N, 3, H, W] in [-1, 1]: divides
/// by the VAE's scaling factor, then decodes.
///
/// # Errors
/// If libtorch fails (out of memory).
pub fn decode_latents(vae: &AutoencoderKl, latents: &Tensor) -> Result<Tensor, Error> {
    Ok(guard(|| tch::no_grad(|| vae.decode(&vae.config().latent_scale().unscale(latents))))?)
}
