//! The training objective: from stored latents and embeddings to the loss of one micro-batch. This is
//! the one place where latents are multiplied by the VAE's scaling factor.

use crate::config::Timesteps;
use crate::philox::{Draw, Purpose};
use tch::{Device, Kind, Tensor};
use tidemill_models::{ClipTextModel, Denoiser, NoiseSchedule};
use tidemill_torch::{tensor_of, upload};

/// The rows of one micro-batch, as the stream gives them.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// The step, counted from 0 over all phases.
    pub step: u64,
    /// Rows in the global batch of which these are a part.
    pub global_batch: usize,
    /// Their places in it.
    pub places: &'a [u32],
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
    /// What the losses of the rows count [N], f32; none if all alike.
    pub weights: Option<Tensor>,
}

/// What is drawn for each row beside its noise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drawing {
    /// How timesteps are drawn.
    pub timesteps: Timesteps,
    /// Share of captions replaced by the empty one.
    pub caption_dropout: f64,
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
    /// What is drawn in training.
    pub drawing: Drawing,
    /// Standard deviation of what is added to the noise of a whole channel.
    pub noise_offset: f64,
    /// What the loss of each timestep counts [T], f32, on the device; none if all alike.
    pub weights: Option<Tensor>,
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
        self.drawn(rows, self.drawing)
    }

    /// As [`Self::inputs`], for a comparison: with timesteps spread evenly over the batch and all captions.
    pub fn held_out_inputs(&self, rows: Rows) -> Inputs {
        self.drawn(rows, Drawing { timesteps: Timesteps::Stratified, caption_dropout: 0.0 })
    }

    fn drawn(&self, rows: Rows, drawing: Drawing) -> Inputs {
        tch::no_grad(|| {
            let latents = self.latents(rows);
            let noise = self.noise(rows, &latents.size());
            let timesteps = self.timesteps(rows, drawing.timesteps);
            Inputs {
                weights: self.weights.as_ref().map(|weights| weights.index_select(0, &timesteps)),
                sample: self.schedule.add_noise(&latents, &noise, &timesteps).to_kind(self.kind),
                target: self.schedule.target(&latents, &noise, &timesteps),
                timesteps,
                text: self.text(rows, drawing.caption_dropout),
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

    fn text(&self, rows: Rows, caption_dropout: f64) -> Tensor {
        let text = self.drop_captions(rows, caption_dropout);
        match &self.text_encoder {
            None => text,
            // Rounded as if it had been stored.
            Some(encoder) => encoder.forward(&text).to_kind(Kind::Half).to_kind(self.kind),
        }
    }

    /// The rows' text, of which some are replaced by the empty caption.
    fn drop_captions(&self, rows: Rows, share: f64) -> Tensor {
        let empty = self.empty_text.unsqueeze(0);
        let mut shape = empty.size();
        shape[0] = n(rows);
        let stored = if self.text_encoder.is_some() { Kind::Int } else { Kind::Half };
        let text = tensor_of(rows.text, stored, &shape, empty.kind(), self.device);
        let dropped: Vec<bool> = draws(self.seed, rows, Purpose::CaptionDropout)
            .map(|draw| f64::from(draw.uniform()) < share)
            .collect();
        if !dropped.contains(&true) {
            return text;
        }
        let mut shape = vec![1; shape.len()];
        shape[0] = -1;
        let dropped = upload(&Tensor::from_slice(&dropped), self.device).reshape(shape);
        empty.where_self(&dropped, &text)
    }

    /// One of the schedule's T timesteps for each row.
    fn timesteps(&self, rows: Rows, how: Timesteps) -> Tensor {
        let count = self.schedule.config().num_train_timesteps;
        // A share of 1 can come out of rounding.
        let at = |share: f64| ((share * count as f64) as i64).min(count - 1);
        let drawn = || draws(self.seed, rows, Purpose::Timestep);
        let timesteps: Vec<i64> = match how {
            Timesteps::Uniform => drawn().map(|draw| i64::from(draw.below(count as u32))).collect(),
            Timesteps::LogitNormal { mean, std } => {
                let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
                drawn().map(|draw| at(sigmoid(mean + std * draw.one_normal()))).collect()
            }
            Timesteps::Stratified => {
                let first = f64::from(Draw::new(self.seed, 0, rows.step, Purpose::Stratum).uniform());
                let share = |place: &u32| (first + f64::from(*place) / rows.global_batch as f64).fract();
                rows.places.iter().map(|place| at(share(place))).collect()
            }
        };
        upload(&Tensor::from_slice(&timesteps), self.device)
    }

    fn noise(&self, rows: Rows, shape: &[i64]) -> Tensor {
        let noise = self.normal(rows, shape, Purpose::Noise);
        if self.noise_offset == 0.0 {
            return noise;
        }
        noise + self.normal(rows, &[shape[0], shape[1], 1, 1], Purpose::NoiseOffset) * self.noise_offset
    }

    fn normal(&self, rows: Rows, shape: &[i64], purpose: Purpose) -> Tensor {
        let per_row = usize::try_from(shape[1..].iter().product::<i64>()).unwrap_or(0);
        let mut numbers = vec![0f32; per_row * rows.sample_ids.len()];
        for (row, draw) in numbers.chunks_mut(per_row).zip(draws(self.seed, rows, purpose)) {
            draw.normal(row);
        }
        upload(&Tensor::from_slice(&numbers).reshape(shape), self.device)
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
    use std::sync::LazyLock;

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
            drawing: Drawing { timesteps: Timesteps::Uniform, caption_dropout },
            noise_offset: 0.0,
            weights: None,
            moments: true,
            empty_text: Tensor::zeros([3, 2], (Kind::Float, device)),
            text_encoder: None,
            kind: Kind::Float,
            device,
        }
    }

    /// Rows at the beginning of a step, in latents of [`SHAPE`].
    fn rows<'a>(ids: &'a [u64], epochs: &'a [u32], latents: &'a [u8], text: &'a [u8]) -> Rows<'a> {
        static PLACES: LazyLock<Vec<u32>> = LazyLock::new(|| (0..4096).collect());
        let places = &PLACES[..ids.len()];
        let (step, global_batch) = (0, ids.len());
        Rows { step, global_batch, places, sample_ids: ids, epochs, latents, latents_shape: SHAPE, text }
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
            let rows = rows(&ids, &epochs, &moments, &text);
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
        let rows = rows(&[9], &[3], &stored, &text);
        let latents = Objective { moments: false, ..objective(0.0) }.latents(rows);
        let expected = Tensor::arange(16, (Kind::Float, Device::Cpu)).reshape([1, 4, 2, 2]) * 0.5;
        assert!(equal(&latents, &expected));
    }

    #[test]
    fn the_split_into_micro_batches_changes_no_draw() {
        let moments = bytes(&(0..32).map(|i| i as f32 / 16.0).collect::<Vec<_>>());
        let text = bytes(&[1.0; 12]);
        let (ids, epochs) = ([5u64, 6], [2u32, 2]);
        let whole = objective(0.5).inputs(rows(&ids, &epochs, &moments, &text));
        let second = objective(0.5).inputs(rows(&ids[1..], &epochs[1..], &moments[32..], &text[12..]));
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
            let rows = rows(&ids, &epochs, &moments, &text);
            objective(0.0).text(rows, 0.1).select(1, 0).select(1, 0)
        };
        let rate = 1.0 - dropped(0).mean(Kind::Float).double_value(&[]);
        assert!((rate - 0.1).abs() < 0.03, "{rate}");
        assert!(!equal(&dropped(0), &dropped(1)));
    }

    fn drawn(draw: Timesteps, step: u64, count: usize) -> Vec<i64> {
        let (ids, epochs): (Vec<u64>, _) = ((0..count as u64).collect(), vec![0; count]);
        let all = Rows { step, ..rows(&ids, &epochs, &[], &[]) };
        Vec::try_from(objective(0.0).timesteps(all, draw)).unwrap()
    }

    #[test]
    fn timesteps_are_drawn_as_asked() {
        let mean = |drawn: &[i64]| drawn.iter().sum::<i64>() as f64 / drawn.len() as f64;
        assert!((mean(&drawn(Timesteps::Uniform, 0, 4000)) - 499.5).abs() < 15.0);
        // E sigmoid(x) and the share below 1/2, of x normal around -1 with deviation 1/2: 0.2784 and Phi(2) = 0.9772.
        let early = drawn(Timesteps::LogitNormal { mean: -1.0, std: 0.5 }, 0, 4000);
        let below = early.iter().filter(|t| **t < 500).count() as f64 / 4000.0;
        assert!(
            (mean(&early) - 278.0).abs() < 6.0 && (below - 0.9772).abs() < 0.01,
            "{} {below}",
            mean(&early)
        );
        // Rounding ends at the last timestep.
        assert!(drawn(Timesteps::LogitNormal { mean: 1e3, std: 1.0 }, 0, 8).iter().all(|t| *t == 999));
    }

    #[test]
    fn strata_are_spread_over_the_global_batch_whatever_its_parts() {
        let all = drawn(Timesteps::Stratified, 3, 50);
        let mut strata: Vec<i64> = all.iter().map(|t| t / 20).collect();
        strata.sort_unstable();
        strata.dedup();
        assert!(strata.len() >= 49, "a stratum each, up to rounding: {all:?}");
        assert_ne!(all, drawn(Timesteps::Stratified, 4, 50));
        let places: Vec<u32> = (30..50).collect();
        let (ids, epochs) = ([7u64; 20], [0; 20]);
        let part = Rows { step: 3, global_batch: 50, places: &places, ..rows(&ids, &epochs, &[], &[]) };
        let part = objective(0.0).timesteps(part, Timesteps::Stratified);
        assert_eq!(Vec::<i64>::try_from(part).unwrap(), all[30..]);
    }

    #[test]
    fn an_offset_moves_whole_channels() {
        let (ids, epochs): (Vec<u64>, _) = ((0..500).collect(), vec![0; 500]);
        let noise = |noise_offset| {
            let objective = Objective { noise_offset, ..objective(0.0) };
            objective.noise(rows(&ids, &epochs, &[], &[]), &[500, 2, 2, 2])
        };
        let offset = noise(0.5) - noise(0.0);
        let first = offset.narrow(2, 0, 1).narrow(3, 0, 1);
        assert!((&offset - &first).abs().max().double_value(&[]) < 1e-6);
        let deviation = first.std(true).double_value(&[]);
        assert!((deviation - 0.5).abs() < 0.05, "{deviation}");
    }
}
