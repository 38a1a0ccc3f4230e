//! The denoising objective: noisy latents and prediction targets from a micro-batch, and the errors
//! of the network's prediction.

use tch::{Device, Kind, Tensor};
use tidemill_models::{Conditions, Denoiser, LatentScale, NoiseSchedule, TextStates};
use tidemill_torch::{tensor_from_bytes, upload};

use super::micro_batch::{MicroBatch, Rows};
use super::random_draws::{RandomDrawer, RandomDraws};
use super::text_conditions::TextConditions;
use super::timestep_sampling::find_bins;
use super::vae_posterior::sample_latents;

/// The network's inputs, and the target of its prediction.
#[derive(Debug)]
pub struct DenoiserInputs {
    /// Noisy latents [N, C, h, w], in the network's dtype.
    pub sample: Tensor,
    /// Timesteps [N], i64, from little noise to much.
    pub timesteps: Tensor,
    /// Timesteps as the network takes them [N], i64 or f32.
    pub network_timesteps: Tensor,
    /// Text in the network's dtype, and the sizes of image and crop, f32.
    pub conditions: Conditions,
    /// The target of the prediction [N, C, h, w], f32.
    pub target: Tensor,
    /// The weights of the rows' losses [N], f32; `None` if all weigh the same.
    pub loss_weights: Option<Tensor>,
}

/// How rows become inputs and errors.
#[derive(Debug)]
pub struct Objective {
    /// The noise schedule, with its prediction type.
    pub schedule: NoiseSchedule,
    /// How the VAE's latents become the network's.
    pub scale: LatentScale,
    /// Draws for each row.
    pub drawer: RandomDrawer,
    /// The gamma of min-SNR loss weights; `None` if all timesteps weigh the same.
    pub min_snr_gamma: Option<f64>,
    /// The text columns of the rows.
    pub text: TextConditions,
    /// The network's dtype.
    pub kind: Kind,
    /// The network's device.
    pub device: Device,
}

impl Objective {
    /// The shape [C, h, w] of the latents that are sampled from stored ones of this shape.
    pub fn latents_shape(&self, [channels, height, width]: [i64; 3]) -> [i64; 3] {
        [if self.drawer.has_moments { channels / 2 } else { channels }, height, width]
    }

    /// Uploads rows and their draws to the device, without waiting for it.
    ///
    /// # Panics
    /// If libtorch fails: run it in [`guard`](tidemill_torch::guard()).
    pub fn upload(&self, rows: Rows, draws: &RandomDraws) -> MicroBatch {
        let batched = |n: i64, shape: &[i64]| [&[n], shape].concat();
        let n = rows.keys.sample_ids.len() as i64;
        let to_device = |tensor: &Tensor| upload(tensor, self.device);
        let latents_shape = batched(n, &rows.latents_shape);
        let ids = |ids| tensor_from_bytes(ids, Kind::Int, &[n, 6], Kind::Float, self.device);
        MicroBatch {
            latents: tensor_from_bytes(rows.latents, Kind::Half, &latents_shape, Kind::Float, self.device),
            posterior: draws.posterior.as_ref().map(to_device),
            noise: to_device(&draws.noise),
            timesteps: to_device(&draws.timesteps),
            text: self.text.upload(n, &rows.text),
            time_ids: rows.time_ids.map(ids),
            dropped: draws.dropped.as_ref().map(to_device),
        }
    }

    /// Samples latents, adds noise, drops captions and encodes text, as `denoiser` takes them.
    ///
    /// # Panics
    /// If libtorch fails: run it in [`guard`](tidemill_torch::guard()).
    pub fn prepare_inputs(&self, denoiser: &dyn Denoiser, rows: &MicroBatch) -> DenoiserInputs {
        tch::no_grad(|| {
            let MicroBatch { noise, timesteps, posterior, .. } = rows;
            let TextStates { hidden: text, pooled } = self.text.join(&rows.text, rows.dropped.as_ref());
            let time_ids = rows.time_ids.as_ref().map(Tensor::shallow_clone);
            let latents = sample_latents(&rows.latents, posterior.as_ref(), self.scale);
            let size = latents.size();
            let levels = self.schedule.levels(timesteps, denoiser.image_seq_len([size[2], size[3]]));
            DenoiserInputs {
                loss_weights: self.min_snr_gamma.map(|gamma| levels.min_snr_weights(gamma)),
                sample: levels.add_noise(&latents, noise).to_kind(self.kind),
                target: levels.target(&latents, noise),
                network_timesteps: levels.network_timesteps(),
                timesteps: timesteps.shallow_clone(),
                conditions: Conditions { text, pooled, time_ids },
            }
        })
    }

    /// The mean squared error of each row's prediction, before weighting: [N], f32.
    ///
    /// # Panics
    /// If libtorch fails: run it in [`guard`](tidemill_torch::guard()).
    pub fn compute_errors(&self, denoiser: &dyn Denoiser, inputs: &DenoiserInputs) -> Tensor {
        let prediction = denoiser.denoise(&inputs.sample, &inputs.network_timesteps, &inputs.conditions);
        let squared = (prediction.to_kind(Kind::Float) - &inputs.target).square();
        squared.mean_dim(&[1i64, 2, 3][..], false, Kind::Float)
    }

    /// The index of each timestep's bin, of `bins` equal parts of the schedule's timesteps: [N],
    /// i64.
    pub fn timestep_bins(&self, timesteps: &Tensor, bins: usize) -> Tensor {
        find_bins(timesteps, self.schedule.config().num_train_timesteps, bins)
    }
}

#[cfg(test)]
mod tests {
    use half::f16;
    use tidemill_models::SchedulerConfig;

    use super::*;
    use crate::config::TimestepSampling;
    use crate::objective::sample_keys::SampleKeys;

    const SHAPE: [i64; 3] = [4, 2, 2];

    fn objective(has_moments: bool, caption_dropout: f64) -> Objective {
        let device = Device::Cpu;
        Objective {
            schedule: NoiseSchedule::new(SchedulerConfig::default(), device),
            scale: LatentScale { factor: 0.5, shift: 0.0 },
            drawer: RandomDrawer {
                seed: 1,
                timestep_count: 1000,
                timestep_sampling: TimestepSampling::Uniform,
                edm: None,
                caption_dropout: vec![caption_dropout],
                noise_offset: 0.0,
                has_moments,
            },
            min_snr_gamma: None,
            text: TextConditions::of_embeddings(&[3, 2], (Kind::Float, device)),
            kind: Kind::Float,
            device,
        }
    }

    /// A network whose output no test reads.
    struct NoDenoiser;

    impl Denoiser for NoDenoiser {
        fn denoise(&self, sample: &Tensor, _: &Tensor, _: &Conditions) -> Tensor {
            sample.shallow_clone()
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
        let (positions, epochs): (Vec<u32>, _) = ((0..ids.len() as u32).collect(), vec![epoch; ids.len()]);
        let (step, global_batch) = (0, ids.len());
        let keys = SampleKeys { step, global_batch, positions: &positions, sample_ids: ids, epochs: &epochs };
        let draws = objective.drawer.draw(keys, objective.latents_shape(SHAPE));
        objective
            .upload(Rows { keys, latents, latents_shape: SHAPE, text: vec![text], time_ids: None }, &draws)
    }

    fn latents(objective: &Objective, rows: &MicroBatch) -> Tensor {
        sample_latents(&rows.latents, rows.posterior.as_ref(), objective.scale)
    }

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect()
    }

    #[test]
    fn latents_are_scaled_once_and_noise_differs_by_epoch() {
        // Mean 3, log-variance clamped to -30: the latents are 3 x 0.5 whatever is drawn.
        let moments = bytes(&[[3f32; 8], [-60f32; 8]].concat());
        let text = bytes(&[1.0; 6]);
        let objective = objective(true, 0.0);
        let at = |epoch| {
            let rows = micro_batch(&objective, &[9], epoch, &moments, &text);
            (latents(&objective, &rows), objective.prepare_inputs(&NoDenoiser, &rows))
        };
        let (latents, first) = at(0);
        assert!((latents - 1.5).abs().max().double_value(&[]) < 1e-5);
        assert!(first.sample.equal(&at(0).1.sample));
        assert!(!first.sample.equal(&at(1).1.sample));
    }

    #[test]
    fn latents_are_shifted_before_they_are_scaled() {
        let scale = LatentScale { factor: 0.5, shift: 1.0 };
        let stored = Tensor::from_slice(&[3f32, -1.0]);
        let scaled = sample_latents(&stored, None, scale);
        assert_eq!(Vec::<f32>::try_from(&scaled).unwrap(), [1.0, -1.0]);
        assert!(scale.unscale(&scaled).equal(&stored));
    }

    #[test]
    fn latents_without_moments_are_only_scaled() {
        let (stored, text) = (bytes(&(0..16).map(|i| i as f32).collect::<Vec<_>>()), bytes(&[1.0; 6]));
        let objective = objective(false, 0.0);
        let latents = latents(&objective, &micro_batch(&objective, &[9], 3, &stored, &text));
        let expected = Tensor::arange(16, (Kind::Float, Device::Cpu)).reshape([1, 4, 2, 2]) * 0.5;
        assert!(latents.equal(&expected));
    }

    #[test]
    fn dropped_captions_are_encoded_as_the_empty_one() {
        let ids: Vec<u64> = (0..32).collect();
        let (moments, text) = (vec![0u8; ids.len() * 32], bytes(&vec![1.0; ids.len() * 6]));
        let objective = objective(true, 0.5);
        let rows = micro_batch(&objective, &ids, 0, &moments, &text);
        let kept = objective.prepare_inputs(&NoDenoiser, &rows).conditions.text.mean_dim(
            &[1i64, 2][..],
            false,
            Kind::Float,
        );
        let dropped = rows.dropped.as_ref().unwrap().squeeze_dim(1);
        assert!(kept.equal(&dropped.logical_not().to_kind(Kind::Float)));
        assert!((1..32).contains(&dropped.sum(Kind::Int64).int64_value(&[])));
    }
}
