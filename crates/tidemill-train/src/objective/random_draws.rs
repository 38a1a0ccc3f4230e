//! Everything that is drawn for the rows of a micro-batch: posterior samples, noise, timesteps and
//! dropped captions. All of it depends only on the rows' keys, not on their contents, so it can be
//! drawn ahead of time and on any thread.

use tch::Tensor;
use tidemill_models::EdmConfig;

use super::caption_dropout::draw_dropped;
use super::noise::{draw_noise, draw_normal};
use super::philox::Purpose;
use super::sample_keys::SampleKeys;
use super::timestep_sampling::{TimestepLevels, sample_timesteps};
use crate::config::{TimestepSampling, TrainConfig};

/// Draws for rows, with these settings.
#[derive(Clone, Debug, PartialEq)]
pub struct RandomDrawer {
    /// The run's seed. Phases of another resolution than the first have seeds of their own.
    pub seed: u64,
    /// The number of timesteps in the noise schedule.
    pub timestep_count: i64,
    /// How timesteps are sampled.
    pub timestep_sampling: TimestepSampling,
    /// The noise levels of the timesteps, if they are EDM's.
    pub edm: Option<EdmConfig>,
    /// Shares of captions replaced by the empty one: for all text encoders together, or for each.
    pub caption_dropout: Vec<f64>,
    /// Standard deviation of the offset that is added to the noise of a whole channel.
    pub noise_offset: f64,
    /// Whether stored latents are moments, from which latents are sampled.
    pub has_moments: bool,
}

/// What is drawn for the rows of a micro-batch, on the host.
#[derive(Debug)]
pub struct RandomDraws {
    /// Standard normal numbers for sampling the posterior [N, C, h, w], f32; `None` if stored
    /// latents are not moments.
    pub posterior: Option<Tensor>,
    /// The noise [N, C, h, w], f32.
    pub noise: Tensor,
    /// The timesteps [N], i64.
    pub timesteps: Tensor,
    /// Whether each row's caption is dropped, for all text encoders together [N, 1], or for each [N, E], bool; `None`
    /// without caption dropout.
    pub dropped: Option<Tensor>,
}

impl RandomDrawer {
    /// For validation: timesteps are spread evenly over the batch, and no caption is dropped.
    pub fn for_validation(&self) -> Self {
        let (timestep_sampling, caption_dropout) = (TimestepSampling::Stratified, Vec::new());
        Self { timestep_sampling, caption_dropout, ..self.clone() }
    }

    /// For the rows of a phase. Epochs count from 0 at each resolution. With another seed a row
    /// gets another timestep there than in the same epoch of the first phase.
    pub fn for_phase(&self, train: &TrainConfig, phase: usize) -> Self {
        let [first, this] = [0, phase].map(|phase| u64::from(train.phase[phase].resolution));
        let seed = self.seed.wrapping_add((this ^ first).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        Self { seed, ..self.clone() }
    }

    /// Draws for rows whose latents have the shape [C, h, w].
    ///
    /// # Panics
    /// If libtorch fails: run it in [`guard`](tidemill_torch::guard()).
    pub fn draw(&self, keys: SampleKeys<'_>, [channels, height, width]: [i64; 3]) -> RandomDraws {
        let shape = [keys.sample_ids.len() as i64, channels, height, width];
        let dropped = || {
            let drawn = draw_dropped(keys.draws(self.seed, Purpose::CaptionDropout), &self.caption_dropout);
            Tensor::from_slice(&drawn).view([shape[0], -1])
        };
        let levels = TimestepLevels { count: self.timestep_count, edm: self.edm };
        let timesteps = sample_timesteps(self.timestep_sampling, levels, self.seed, keys);
        RandomDraws {
            posterior: self.has_moments.then(|| draw_normal(self.seed, keys, shape, Purpose::Moments)),
            noise: draw_noise(self.seed, keys, shape, self.noise_offset),
            timesteps: Tensor::from_slice(&timesteps),
            dropped: self.caption_dropout.iter().any(|share| *share > 0.0).then(dropped),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PhaseConfig;

    const DRAWER: RandomDrawer = RandomDrawer {
        seed: 1,
        timestep_count: 1000,
        timestep_sampling: TimestepSampling::Uniform,
        edm: None,
        caption_dropout: Vec::new(),
        noise_offset: 0.0,
        has_moments: true,
    };

    fn keys<'a>(ids: &'a [u64], epochs: &'a [u32], positions: &'a [u32]) -> SampleKeys<'a> {
        SampleKeys { step: 0, global_batch: ids.len(), positions, sample_ids: ids, epochs }
    }

    #[test]
    fn draws_do_not_depend_on_the_split_into_micro_batches() {
        let (ids, epochs, positions) = ([5u64, 6, 7], [2u32; 3], [0u32, 1, 2]);
        let drawer = RandomDrawer { caption_dropout: vec![0.5, 0.2], noise_offset: 0.1, ..DRAWER };
        let draw = |keys| {
            let RandomDraws { posterior, noise, timesteps, dropped } = drawer.draw(keys, [4, 2, 2]);
            [posterior.unwrap(), noise, timesteps, dropped.unwrap()]
        };
        let whole = draw(keys(&ids, &epochs, &positions));
        let last = draw(keys(&ids[1..], &epochs[1..], &positions[1..]));
        for (whole, last) in whole.iter().zip(&last) {
            assert!(whole.narrow(0, 1, 2).equal(last));
        }
    }

    #[test]
    fn phases_draw_the_same_only_at_the_same_resolution() {
        let phase = [256, 512, 256].map(PhaseConfig::new).to_vec();
        let train = TrainConfig { phase, ..TrainConfig::default() };
        let (ids, positions): (Vec<u64>, Vec<u32>) = ((0..200).collect(), (0..200).collect());
        let timesteps = |drawer: RandomDrawer| {
            let drawn = drawer.draw(keys(&ids, &[0; 200], &positions), [1, 1, 1]).timesteps;
            Vec::<i64>::try_from(drawn).unwrap()
        };
        let [first, second, third] = [0, 1, 2].map(|phase| timesteps(DRAWER.for_phase(&train, phase)));
        assert_eq!(first, timesteps(DRAWER));
        assert_eq!(first, third);
        let equal = first.iter().zip(&second).filter(|(a, b)| a == b).count();
        assert!(equal < 5, "{equal} of 200 timesteps are the same");
    }
}
