//! The training objective: from stored latents and embeddings to the loss of one micro-batch. This is
//! the one place where latents are multiplied by the VAE's scaling factor.

use crate::objective::draws::{Drawer, Draws, Names};
use tch::{Device, Kind, Tensor};
use tidemill_models::{ClipTextModel, Denoiser, NoiseSchedule};
use tidemill_torch::{tensor_from_bytes, upload};

/// The rows of one micro-batch, as the stream gives them.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// Which they are.
    pub names: Names<'a>,
    /// VAE latents, unscaled: f16, row-major.
    pub latents: &'a [u8],
    /// The shape of each: [2 C, h, w] if they are moments, [C, h, w] if not.
    pub latents_shape: [i64; 3],
    /// Text embeddings, f16, or where there is a text encoder token ids, i32: row-major, each in the shape of
    /// [`Objective::empty_text`].
    pub text: &'a [u8],
}

/// The rows of one micro-batch and what was drawn for them, all of it on the network's device: what is computed from here on needs
/// nothing from the host.
#[derive(Debug)]
pub struct MicroBatch {
    /// VAE latents, unscaled, f32: [N, 2 C, h, w] if they are moments, [N, C, h, w] if not.
    pub latents: Tensor,
    /// As [`Draws::posterior`].
    pub posterior: Option<Tensor>,
    /// As [`Draws::noise`].
    pub noise: Tensor,
    /// As [`Draws::timesteps`].
    pub timesteps: Tensor,
    /// Text embeddings [N, L, D] in the network's dtype, or token ids [N, L], i64.
    pub text: Tensor,
    /// As [`Draws::dropped`].
    pub dropped: Option<Tensor>,
}

impl MicroBatch {
    /// All that it has.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        let Self { latents, posterior, noise, timesteps, text, dropped } = self;
        [latents, noise, timesteps, text].into_iter().chain(posterior).chain(dropped)
    }
}

/// What the network gets, and what it should answer.
#[derive(Debug)]
pub struct Inputs {
    /// Noisy latents [N, C, h, w], in the network's dtype.
    pub sample: Tensor,
    /// Timesteps [N], i64.
    pub timesteps: Tensor,
    /// Text embeddings [N, L, D], in the network's dtype.
    pub text: Tensor,
    /// The target of the prediction [N, C, h, w], f32.
    pub target: Tensor,
    /// What the losses of the rows count [N], f32; none if all alike.
    pub weights: Option<Tensor>,
}

/// How rows become inputs.
#[derive(Debug)]
pub struct Objective {
    /// The noise schedule, with its prediction type.
    pub schedule: NoiseSchedule,
    /// The VAE's scaling factor.
    pub scaling_factor: f64,
    /// What is drawn for each row.
    pub drawer: Drawer,
    /// What the loss of each timestep counts [T], f32, on the device; none if all alike.
    pub weights: Option<Tensor>,
    /// The empty caption: its embedding [L, D] in the network's dtype, or its token ids [L], i64.
    pub empty_text: Tensor,
    /// What token ids are encoded with.
    pub text_encoder: Option<ClipTextModel>,
    /// The network's dtype.
    pub kind: Kind,
    /// The network's device.
    pub device: Device,
}

impl Objective {
    /// The shape [C, h, w] of latents that are stored in this one.
    pub fn latents_shape(&self, [channels, height, width]: [i64; 3]) -> [i64; 3] {
        [if self.drawer.moments { channels / 2 } else { channels }, height, width]
    }

    /// Takes rows, and what was drawn for them, to the device, which nobody waits for.
    pub fn on_device(&self, rows: Rows, draws: &Draws) -> MicroBatch {
        let with = |n: i64, shape: &[i64]| [&[n], shape].concat();
        let n = rows.names.sample_ids.len() as i64;
        let there = |tensor: &Tensor| upload(tensor, self.device);
        let stored = if self.text_encoder.is_some() { Kind::Int } else { Kind::Half };
        let (latents_shape, text_shape) = (with(n, &rows.latents_shape), with(n, &self.empty_text.size()));
        MicroBatch {
            latents: tensor_from_bytes(rows.latents, Kind::Half, &latents_shape, Kind::Float, self.device),
            posterior: draws.posterior.as_ref().map(there),
            noise: there(&draws.noise),
            timesteps: there(&draws.timesteps),
            text: tensor_from_bytes(rows.text, stored, &text_shape, self.empty_text.kind(), self.device),
            dropped: draws.dropped.as_ref().map(there),
        }
    }

    /// Samples latents, adds noise, and drops captions.
    pub fn inputs(&self, rows: &MicroBatch) -> Inputs {
        tch::no_grad(|| {
            let (latents, MicroBatch { noise, timesteps, .. }) = (self.latents(rows), rows);
            Inputs {
                weights: self.weights.as_ref().map(|weights| weights.index_select(0, timesteps)),
                sample: self.schedule.add_noise(&latents, noise, timesteps).to_kind(self.kind),
                target: self.schedule.target(&latents, noise, timesteps),
                timesteps: timesteps.shallow_clone(),
                text: self.text(rows),
            }
        })
    }

    /// Mean squared error of each row, before weights: [N], f32.
    pub fn errors(&self, denoiser: &dyn Denoiser, inputs: &Inputs) -> Tensor {
        let prediction = denoiser.denoise(&inputs.sample, &inputs.timesteps, &inputs.text);
        let squared = (prediction.to_kind(Kind::Float) - &inputs.target).square();
        squared.mean_dim(&[1i64, 2, 3][..], false, Kind::Float)
    }

    /// In which of so many equal parts of the timesteps each of these lies: [N], i64.
    pub fn tenths(&self, timesteps: &Tensor, parts: usize) -> Tensor {
        let count = self.schedule.config().num_train_timesteps;
        (timesteps * parts as i64).divide_scalar_mode(count, "floor").to_kind(Kind::Int64)
    }

    /// A sample of the VAE's posterior, scaled: (mean + exp(logvar / 2) n) f. The log-variance is
    /// clamped as diffusers' DiagonalGaussianDistribution does. Without moments what is stored, scaled.
    fn latents(&self, MicroBatch { latents, posterior, .. }: &MicroBatch) -> Tensor {
        let Some(posterior) = posterior else { return latents * self.scaling_factor };
        let channels = latents.size()[1] / 2;
        let (mean, log_variance) = (latents.narrow(1, 0, channels), latents.narrow(1, channels, channels));
        (mean + (log_variance.clamp(-30.0, 20.0) * 0.5).exp() * posterior) * self.scaling_factor
    }

    /// The rows' text, of which some is replaced by the empty caption, encoded.
    fn text(&self, MicroBatch { text, dropped, .. }: &MicroBatch) -> Tensor {
        let text = match dropped {
            None => text.shallow_clone(),
            Some(dropped) => {
                let mut shape = vec![1; text.dim()];
                shape[0] = -1;
                self.empty_text.unsqueeze(0).where_self(&dropped.reshape(shape), text)
            }
        };
        match &self.text_encoder {
            None => text,
            // Rounded as if it had been stored.
            Some(encoder) => encoder.forward(&text).to_kind(Kind::Half).to_kind(self.kind),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Timesteps;
    use half::f16;
    use tidemill_models::SchedulerConfig;

    const SHAPE: [i64; 3] = [4, 2, 2];

    fn objective(moments: bool, caption_dropout: f64) -> Objective {
        let device = Device::Cpu;
        let how = Timesteps::Uniform;
        Objective {
            schedule: NoiseSchedule::new(SchedulerConfig::default(), device),
            scaling_factor: 0.5,
            drawer: Drawer { seed: 1, timesteps: 1000, how, caption_dropout, noise_offset: 0.0, moments },
            weights: None,
            empty_text: Tensor::zeros([3, 2], (Kind::Float, device)),
            text_encoder: None,
            kind: Kind::Float,
            device,
        }
    }

    /// Rows of these sample ids, in one epoch, with latents of [`SHAPE`].
    fn micro_batch(
        objective: &Objective,
        ids: &[u64],
        epoch: u32,
        latents: &[u8],
        text: &[u8],
    ) -> MicroBatch {
        let (places, epochs): (Vec<u32>, _) = ((0..ids.len() as u32).collect(), vec![epoch; ids.len()]);
        let (step, global_batch) = (0, ids.len());
        let names = Names { step, global_batch, places: &places, sample_ids: ids, epochs: &epochs };
        let draws = objective.drawer.draw(names, objective.latents_shape(SHAPE));
        objective.on_device(Rows { names, latents, latents_shape: SHAPE, text }, &draws)
    }

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect()
    }

    #[test]
    fn latents_are_scaled_once_and_differ_by_epoch() {
        // Mean 3, log-variance clamped to -30: the latents are 3 x 0.5 whatever is drawn.
        let moments = bytes(&[[3f32; 8], [-60f32; 8]].concat());
        let text = bytes(&[1.0; 6]);
        let objective = objective(true, 0.0);
        let at = |epoch| {
            let rows = micro_batch(&objective, &[9], epoch, &moments, &text);
            (objective.latents(&rows), objective.inputs(&rows))
        };
        let (latents, first) = at(0);
        assert!((latents - 1.5).abs().max().double_value(&[]) < 1e-5);
        assert!(first.sample.equal(&at(0).1.sample));
        assert!(!first.sample.equal(&at(1).1.sample));
    }

    #[test]
    fn latents_that_are_no_moments_are_scaled_and_nothing_else() {
        let (stored, text) = (bytes(&(0..16).map(|i| i as f32).collect::<Vec<_>>()), bytes(&[1.0; 6]));
        let objective = objective(false, 0.0);
        let latents = objective.latents(&micro_batch(&objective, &[9], 3, &stored, &text));
        let expected = Tensor::arange(16, (Kind::Float, Device::Cpu)).reshape([1, 4, 2, 2]) * 0.5;
        assert!(latents.equal(&expected));
    }

    #[test]
    fn tenths_begin_with_least_noise() {
        let timesteps = Tensor::from_slice(&[0i64, 99, 100, 999]);
        let tenths = objective(true, 0.0).tenths(&timesteps, 10);
        assert_eq!(Vec::<i64>::try_from(&tenths).unwrap(), [0, 0, 1, 9]);
    }

    #[test]
    fn dropped_captions_become_the_empty_one() {
        let ids: Vec<u64> = (0..32).collect();
        let (moments, text) = (vec![0u8; ids.len() * 32], bytes(&vec![1.0; ids.len() * 6]));
        let objective = objective(true, 0.5);
        let rows = micro_batch(&objective, &ids, 0, &moments, &text);
        let kept = objective.text(&rows).mean_dim(&[1i64, 2][..], false, Kind::Float);
        let dropped = rows.dropped.as_ref().unwrap();
        assert!(kept.equal(&dropped.logical_not().to_kind(Kind::Float)));
        assert!((1..32).contains(&dropped.sum(Kind::Int64).int64_value(&[])));
    }
}
pub(crate) mod draws;
pub(crate) mod philox;
