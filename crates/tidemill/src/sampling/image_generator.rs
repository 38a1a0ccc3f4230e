//! Draws images from prompts with text encoder, U-Net, sampler and VAE.

use image::RgbImage;
use tch::{Kind, Tensor};
use tidemill_models::sampler::{Conditioning, Sampler, sample_latents};
use tidemill_models::{AutoencoderKl, Conditions, NoiseSchedule, SchedulerConfig, TrainableDenoiser};
use tidemill_train::{decode_latents, draw_initial_noise, image_grid};

use super::config::Drawing;
use super::text_embedder::TextEmbedder;
use crate::error::{Error, Result};

/// The models that draw images.
pub struct ImageGenerator {
    /// Embeds the prompts.
    pub text: TextEmbedder,
    /// Decodes latents, f32.
    pub vae: AutoencoderKl,
    /// Predicts noise, velocity or flow.
    pub denoiser: Box<dyn TrainableDenoiser>,
    /// The noise schedule with which the network was trained.
    pub scheduler: SchedulerConfig,
}

impl ImageGenerator {
    /// Draws one image for each prompt. An image depends only on the seed, on its number in
    /// `numbers` and on its prompt. `on_step` is called after each sampler step with the number of
    /// images of the batch.
    ///
    /// # Errors
    /// If the sampler cannot run with this schedule, an image is not finite, or libtorch fails.
    pub fn draw(
        &self,
        prompts: &[String],
        numbers: &[u64],
        drawing: &Drawing,
        mut on_step: impl FnMut(usize),
    ) -> Result<Vec<RgbImage>> {
        let kind = drawing.kind;
        self.denoiser.params().set_kind(kind);
        let device = self.denoiser.params().device();
        let schedule = NoiseSchedule::new(self.scheduler.clone(), device);
        let embed = |prompts: &[String]| -> Result<Conditions> {
            Ok(self.text.embed(prompts)?.to_conditions(kind, [drawing.resolution; 2]))
        };
        let unconditional = embed(&[String::new()])?;
        let side = self.latent_side(drawing);
        let image_seq_len = self.denoiser.image_seq_len([side; 2]);
        let mut images = Vec::with_capacity(prompts.len());
        for (batch, numbers) in prompts.chunks(drawing.batch_size).zip(numbers.chunks(drawing.batch_size)) {
            let conditions = embed(batch)?;
            let noise = self.draw_noise(numbers, drawing);
            let sampler = Sampler::new(drawing.method, &schedule, drawing.steps, image_seq_len)?;
            let conditioning = Conditioning {
                conditions: &conditions,
                unconditional: &unconditional,
                guidance_scale: drawing.guidance,
            };
            let latents =
                sample_latents(&*self.denoiser, sampler, &noise, &conditioning, |_| on_step(batch.len()))?;
            let decoded = decode_latents(&self.vae, &latents)?;
            check_finite(&decoded)?;
            images.extend(image_grid::to_images(&decoded));
        }
        Ok(images)
    }

    /// Draws the noise from which the images with these numbers start: [N, C, h, w], f32.
    pub fn draw_noise(&self, numbers: &[u64], drawing: &Drawing) -> Tensor {
        let (side, device) = (self.latent_side(drawing), self.denoiser.params().device());
        draw_initial_noise(drawing.seed, numbers, &self.vae, side, device)
    }

    /// Height and width of the latents of an image.
    fn latent_side(&self, drawing: &Drawing) -> i64 {
        i64::from(drawing.resolution) / self.vae.config().downscale_factor()
    }
}

/// Refuses images [N, 3, H, W] with values that are not finite: they would become black.
fn check_finite(images: &Tensor) -> Result<()> {
    let per_image = || images.isfinite().flatten(1, -1).all_dim(1, false).logical_not().sum(Kind::Int64);
    let count =
        tidemill_torch::guard(|| per_image().int64_value(&[])).map_err(tidemill_models::Error::from)?;
    match count {
        0 => Ok(()),
        count => Err(Error::NotFinite { count: count as usize, drawn: images.size()[0] as usize }),
    }
}
