//! The training objective: from stored latents and embeddings to the loss of one micro-batch. This is
//! the one place where latents are multiplied by the VAE's scaling factor.

use crate::philox::{Draw, Purpose};
use tch::{Device, Kind, Tensor};
use tidemill_models::{ClipTextModel, Denoiser, NoiseSchedule};
use tidemill_torch::tensor_of;

/// The rows of one micro-batch, as the stream gives them.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// 64-bit sample ids.
    pub sample_ids: &'a [u64],
    /// Epoch of each row.
    pub epochs: &'a [u32],
    /// VAE latents, unscaled: f16, row-major.
    pub latents: &'a [u8],
    /// The shape of each: [2 C, h, w] if they are moments, [C, h, w] if not.
    pub latents_shape: [i64; 3],
    /// Text embeddings, f16, or where there is a text encoder token ids, i32: row-major, each in the shape of
    /// [`Objective::empty_text`].
    pub text: &'a [u8],
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
}

/// How rows become inputs. All randomness is drawn per (seed, epoch, sample, purpose).
#[derive(Debug)]
pub struct Objective {
    /// The noise schedule, with its prediction type.
    pub schedule: NoiseSchedule,
    /// The VAE's scaling factor.
    pub scaling_factor: f64,
    /// The run's seed.
    pub seed: u64,
    /// Share of captions replaced by the empty one.
    pub caption_dropout: f64,
    /// Whether rows hold moments to draw latents from, and not latents that were drawn once and for all.
    pub moments: bool,
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
    /// Samples latents, noise and timesteps, and drops captions.
    pub fn inputs(&self, rows: Rows) -> Inputs {
        tch::no_grad(|| {
            let latents = self.latents(rows);
            let noise = self.normal(rows, &latents.size(), Purpose::Noise);
            let timesteps = self.timesteps(rows);
            Inputs {
                sample: self.schedule.add_noise(&latents, &noise, &timesteps).to_kind(self.kind),
                target: self.schedule.target(&latents, &noise, &timesteps),
                timesteps,
                text: self.text(rows),
            }
        })
    }

    /// Mean squared error over all elements, a scalar in f32.
    pub fn loss(&self, denoiser: &dyn Denoiser, inputs: &Inputs) -> Tensor {
        let prediction = denoiser.denoise(&inputs.sample, &inputs.timesteps, &inputs.text);
        (prediction.to_kind(Kind::Float) - &inputs.target).square().mean(Kind::Float)
    }

    /// A sample of the VAE's posterior, scaled: (mean + exp(logvar / 2) n) f. The log-variance is
    /// clamped as diffusers' DiagonalGaussianDistribution does. Without moments what is stored, scaled.
    fn latents(&self, rows: Rows) -> Tensor {
        let [channels, height, width] = rows.latents_shape;
        let shape = [n(rows), channels, height, width];
        let stored = tensor_of(rows.latents, Kind::Half, &shape, Kind::Float, self.device);
        if !self.moments {
            return stored * self.scaling_factor;
        }
        let (mean, log_variance) =
            (stored.narrow(1, 0, channels / 2), stored.narrow(1, channels / 2, channels / 2));
        let noise = self.normal(rows, &mean.size(), Purpose::Moments);
        (mean + (log_variance.clamp(-30.0, 20.0) * 0.5).exp() * noise) * self.scaling_factor
    }

    fn text(&self, rows: Rows) -> Tensor {
        let text = self.drop_captions(rows);
        match &self.text_encoder {
            None => text,
            // Rounded as if it had been stored.
            Some(encoder) => encoder.forward(&text).to_kind(Kind::Half).to_kind(self.kind),
        }
    }

    /// The rows' text, of which some are replaced by the empty caption.
    fn drop_captions(&self, rows: Rows) -> Tensor {
        let empty = self.empty_text.unsqueeze(0);
        let mut shape = empty.size();
        shape[0] = n(rows);
        let stored = if self.text_encoder.is_some() { Kind::Int } else { Kind::Half };
        let text = tensor_of(rows.text, stored, &shape, empty.kind(), self.device);
        let dropped: Vec<bool> = draws(self.seed, rows, Purpose::CaptionDropout)
            .map(|draw| f64::from(draw.uniform()) < self.caption_dropout)
            .collect();
        if !dropped.contains(&true) {
            return text;
        }
        let mut shape = vec![1; shape.len()];
        shape[0] = -1;
        let dropped = Tensor::from_slice(&dropped).to_device(self.device).reshape(shape);
        empty.where_self(&dropped, &text)
    }

    fn timesteps(&self, rows: Rows) -> Tensor {
        let count = u32::try_from(self.schedule.config().num_train_timesteps).unwrap_or(1000);
        let drawn: Vec<i64> =
            draws(self.seed, rows, Purpose::Timestep).map(|draw| i64::from(draw.below(count))).collect();
        Tensor::from_slice(&drawn).to_device(self.device)
    }

    fn normal(&self, rows: Rows, shape: &[i64], purpose: Purpose) -> Tensor {
        let per_row = usize::try_from(shape[1..].iter().product::<i64>()).unwrap_or(0);
        let mut numbers = vec![0f32; per_row * rows.sample_ids.len()];
        for (row, draw) in numbers.chunks_mut(per_row).zip(draws(self.seed, rows, purpose)) {
            draw.normal(row);
        }
        Tensor::from_slice(&numbers).reshape(shape).to_device(self.device)
    }
}

fn n(rows: Rows) -> i64 {
    i64::try_from(rows.sample_ids.len()).unwrap_or(0)
}

fn draws(seed: u64, rows: Rows<'_>, purpose: Purpose) -> impl Iterator<Item = Draw> + use<'_> {
    rows.sample_ids
        .iter()
        .zip(rows.epochs)
        .map(move |(sample, epoch)| Draw::new(seed, *epoch, *sample, purpose))
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;
    use tidemill_models::SchedulerConfig;

    const SHAPE: [i64; 3] = [4, 2, 2];

    fn objective(caption_dropout: f64) -> Objective {
        let device = Device::Cpu;
        Objective {
            schedule: NoiseSchedule::new(SchedulerConfig::default(), device),
            scaling_factor: 0.5,
            seed: 1,
            caption_dropout,
            moments: true,
            empty_text: Tensor::zeros([3, 2], (Kind::Float, device)),
            text_encoder: None,
            kind: Kind::Float,
            device,
        }
    }

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect()
    }

    fn equal(a: &Tensor, b: &Tensor) -> bool {
        a.equal(b)
    }

    #[test]
    fn latents_are_scaled_once_and_differ_by_epoch() {
        // Mean 3, log-variance clamped to -30: the latents are 3 x 0.5 whatever is drawn.
        let moments = bytes(&[[3f32; 8], [-60f32; 8]].concat());
        let text = bytes(&[1.0; 6]);
        let at = |epoch| {
            let (ids, epochs) = ([9u64], [epoch]);
            let rows = Rows {
                sample_ids: &ids,
                epochs: &epochs,
                latents: &moments,
                latents_shape: SHAPE,
                text: &text,
            };
            let objective = objective(0.0);
            (objective.latents(rows), objective.inputs(rows))
        };
        let (latents, first) = at(0);
        assert!((latents - 1.5).abs().max().double_value(&[]) < 1e-5);
        assert!(equal(&first.sample, &at(0).1.sample));
        assert!(!equal(&first.sample, &at(1).1.sample));
    }

    #[test]
    fn latents_that_are_no_moments_are_scaled_and_nothing_else() {
        let (stored, text) = (bytes(&(0..16).map(|i| i as f32).collect::<Vec<_>>()), bytes(&[1.0; 6]));
        let rows =
            Rows { sample_ids: &[9], epochs: &[3], latents: &stored, latents_shape: SHAPE, text: &text };
        let latents = Objective { moments: false, ..objective(0.0) }.latents(rows);
        let expected = Tensor::arange(16, (Kind::Float, Device::Cpu)).reshape([1, 4, 2, 2]) * 0.5;
        assert!(equal(&latents, &expected));
    }

    #[test]
    fn the_split_into_micro_batches_changes_no_draw() {
        let moments = bytes(&(0..32).map(|i| i as f32 / 16.0).collect::<Vec<_>>());
        let text = bytes(&[1.0; 12]);
        let (ids, epochs) = ([5u64, 6], [2u32, 2]);
        let whole = objective(0.5).inputs(Rows {
            sample_ids: &ids,
            epochs: &epochs,
            latents: &moments,
            latents_shape: SHAPE,
            text: &text,
        });
        let second = objective(0.5).inputs(Rows {
            sample_ids: &ids[1..],
            epochs: &epochs[1..],
            latents: &moments[32..],
            latents_shape: SHAPE,
            text: &text[12..],
        });
        assert!(equal(&whole.sample.narrow(0, 1, 1), &second.sample));
        assert!(equal(&whole.text.narrow(0, 1, 1), &second.text));
        assert!(equal(&whole.timesteps.narrow(0, 1, 1), &second.timesteps));
    }

    #[test]
    fn captions_are_dropped_at_the_asked_rate_and_anew_every_epoch() {
        let count = 2000usize;
        let ids: Vec<u64> = (0..count as u64).collect();
        let (moments, text) = (vec![0u8; count * 32], bytes(&vec![1.0; count * 6]));
        let dropped = |epoch| {
            let epochs = vec![epoch; count];
            let rows = Rows {
                sample_ids: &ids,
                epochs: &epochs,
                latents: &moments,
                latents_shape: SHAPE,
                text: &text,
            };
            objective(0.1).text(rows).select(1, 0).select(1, 0)
        };
        let rate = 1.0 - dropped(0).mean(Kind::Float).double_value(&[]);
        assert!((rate - 0.1).abs() < 0.03, "{rate}");
        assert!(!equal(&dropped(0), &dropped(1)));
    }
}
