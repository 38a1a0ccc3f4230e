//! What is drawn for the rows of a micro-batch: posterior, noise, timesteps, and which captions are dropped. All of it follows from
//! the rows' names, so that it can be drawn before the rows themselves are looked at, on any thread.

use tch::Tensor;

use crate::config::{Timesteps, TrainConfig};
use crate::objective::philox::{Draw, Purpose};

/// Rows of a step, by all that what is drawn for them depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names<'a> {
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
}

/// How it is drawn: per (seed, epoch, sample, purpose), and phases of other resolutions than the first have seeds of their own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drawer {
    /// The run's seed.
    pub seed: u64,
    /// The schedule's number of timesteps.
    pub timesteps: i64,
    /// How timesteps are drawn of these.
    pub how: Timesteps,
    /// Share of captions replaced by the empty one.
    pub caption_dropout: f64,
    /// Standard deviation of what is added to the noise of a whole channel.
    pub noise_offset: f64,
    /// Whether latents are drawn from moments, and not given.
    pub moments: bool,
}

/// Tensors on the host.
#[derive(Debug)]
pub struct Draws {
    /// Standard normal numbers that the posterior's sample is made of [N, C, h, w], f32; none if latents are given.
    pub posterior: Option<Tensor>,
    /// The noise [N, C, h, w], f32.
    pub noise: Tensor,
    /// [N], i64.
    pub timesteps: Tensor,
    /// Whose captions are dropped [N], bool; none if no caption ever is.
    pub dropped: Option<Tensor>,
}

impl Drawer {
    /// For a comparison of networks: timesteps are spread evenly over the batch, and captions stay.
    pub fn held_out(self) -> Self {
        Self { how: Timesteps::Stratified, caption_dropout: 0.0, ..self }
    }

    /// For the rows of a phase. At each resolution epochs count from 0, and a row gets there another timestep than in the same epoch
    /// of the first phase's.
    pub fn of_phase(self, train: &TrainConfig, phase: usize) -> Self {
        let [first, this] = [0, phase].map(|phase| u64::from(train.phase[phase].resolution));
        Self { seed: self.seed.wrapping_add((this ^ first).wrapping_mul(0x9E37_79B9_7F4A_7C15)), ..self }
    }

    /// For rows whose latents have this shape [C, h, w].
    ///
    /// # Panics
    /// Where tch would: run it in [`guard`](tidemill_torch::guard()).
    pub fn draw(&self, names: Names<'_>, [channels, height, width]: [i64; 3]) -> Draws {
        let shape = [names.sample_ids.len() as i64, channels, height, width];
        let dropped = || {
            let drawn = self.draws(names, Purpose::CaptionDropout);
            drawn.map(|draw| f64::from(draw.uniform()) < self.caption_dropout).collect::<Vec<bool>>()
        };
        Draws {
            posterior: self.moments.then(|| self.normal(names, shape, Purpose::Moments)),
            noise: self.noise(names, shape),
            timesteps: Tensor::from_slice(&self.timesteps(names)),
            dropped: (self.caption_dropout > 0.0).then(|| Tensor::from_slice(&dropped())),
        }
    }

    /// One of the schedule's T timesteps for each row.
    fn timesteps(&self, names: Names<'_>) -> Vec<i64> {
        let count = self.timesteps;
        // A share of 1 can come out of rounding.
        let at = |share: f64| ((share * count as f64) as i64).min(count - 1);
        let drawn = || self.draws(names, Purpose::Timestep);
        match self.how {
            Timesteps::Uniform => drawn().map(|draw| i64::from(draw.below(count as u32))).collect(),
            Timesteps::LogitNormal { mean, std } => {
                let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
                drawn().map(|draw| at(sigmoid(mean + std * draw.one_normal()))).collect()
            }
            Timesteps::Stratified => {
                let first = f64::from(Draw::new(self.seed, 0, names.step, Purpose::Stratum).uniform());
                let share = |place: &u32| (first + f64::from(*place) / names.global_batch as f64).fract();
                names.places.iter().map(|place| at(share(place))).collect()
            }
        }
    }

    fn noise(&self, names: Names<'_>, shape: [i64; 4]) -> Tensor {
        let noise = self.normal(names, shape, Purpose::Noise);
        if self.noise_offset == 0.0 {
            return noise;
        }
        let [rows, channels, ..] = shape;
        noise + self.normal(names, [rows, channels, 1, 1], Purpose::NoiseOffset) * self.noise_offset
    }

    fn normal(&self, names: Names<'_>, shape: [i64; 4], purpose: Purpose) -> Tensor {
        let per_row = usize::try_from(shape[1..].iter().product::<i64>()).unwrap_or(0);
        let mut numbers = vec![0f32; per_row * names.sample_ids.len()];
        for (row, draw) in numbers.chunks_mut(per_row).zip(self.draws(names, purpose)) {
            draw.normal(row);
        }
        Tensor::from_slice(&numbers).reshape(shape)
    }

    fn draws<'a>(&self, names: Names<'a>, purpose: Purpose) -> impl Iterator<Item = Draw> + use<'a> {
        let (seed, rows) = (self.seed, names.sample_ids.iter().zip(names.epochs));
        rows.map(move |(sample, epoch)| Draw::new(seed, *epoch, *sample, purpose))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::config::PhaseConfig;

    const UNIFORM: Drawer = Drawer {
        seed: 1,
        timesteps: 1000,
        how: Timesteps::Uniform,
        caption_dropout: 0.0,
        noise_offset: 0.0,
        moments: true,
    };

    /// Rows at the beginning of a step.
    fn names<'a>(ids: &'a [u64], epochs: &'a [u32]) -> Names<'a> {
        static PLACES: LazyLock<Vec<u32>> = LazyLock::new(|| (0..4096).collect());
        let (places, global_batch) = (&PLACES[..ids.len()], ids.len());
        Names { step: 0, global_batch, places, sample_ids: ids, epochs: &epochs[..ids.len()] }
    }

    #[test]
    fn the_split_into_micro_batches_changes_no_draw() {
        let ids = [5u64, 6, 7];
        let drawer = Drawer { caption_dropout: 0.5, noise_offset: 0.1, ..UNIFORM };
        let all = |names| {
            let Draws { posterior, noise, timesteps, dropped } = drawer.draw(names, [4, 2, 2]);
            [posterior.unwrap(), noise, timesteps, dropped.unwrap()]
        };
        let (whole, last) = (all(names(&ids, &[2; 3])), all(names(&ids[1..], &[2; 3])));
        for (whole, last) in whole.iter().zip(&last) {
            assert!(whole.narrow(0, 1, 2).equal(last));
        }
    }

    #[test]
    fn captions_are_dropped_at_the_asked_rate_and_anew_every_epoch() {
        let ids: Vec<u64> = (0..2000).collect();
        let drawer = Drawer { caption_dropout: 0.1, ..UNIFORM };
        let dropped = |epochs| drawer.draw(names(&ids, epochs), [1, 1, 1]).dropped.unwrap();
        let (first, second) = (dropped(&[0; 2000]), dropped(&[1; 2000]));
        let rate = first.to_kind(tch::Kind::Float).mean(tch::Kind::Float).double_value(&[]);
        assert!((rate - 0.1).abs() < 0.03, "{rate}");
        assert!(!first.equal(&second));
    }

    #[test]
    fn phases_draw_alike_at_one_resolution_only() {
        let phase = [256, 512, 256].map(PhaseConfig::at).to_vec();
        let train = TrainConfig { phase, ..TrainConfig::default() };
        let ids: Vec<u64> = (0..200).collect();
        let [first, second, third] =
            [0, 1, 2].map(|phase| UNIFORM.of_phase(&train, phase).timesteps(names(&ids, &[0; 200])));
        assert_eq!(first, UNIFORM.timesteps(names(&ids, &[0; 200])));
        assert_eq!(first, third);
        let alike = first.iter().zip(&second).filter(|(a, b)| a == b).count();
        assert!(alike < 5, "{alike} of 200 timesteps are the same");
    }

    fn drawn(how: Timesteps, step: u64, count: usize) -> Vec<i64> {
        let ids: Vec<u64> = (0..count as u64).collect();
        Drawer { how, ..UNIFORM }.timesteps(Names { step, ..names(&ids, &[0; 4096]) })
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
        let (ids, places): (_, Vec<u32>) = ([7u64; 20], (30..50).collect());
        let part = Names { step: 3, global_batch: 50, places: &places, ..names(&ids, &[0; 20]) };
        let part = Drawer { how: Timesteps::Stratified, ..UNIFORM }.timesteps(part);
        assert_eq!(part, all[30..]);
    }

    #[test]
    fn an_offset_moves_whole_channels() {
        let ids: Vec<u64> = (0..500).collect();
        let noise = |noise_offset| {
            let drawer = Drawer { noise_offset, ..UNIFORM };
            drawer.draw(names(&ids, &[0; 500]), [2, 2, 2]).noise
        };
        let offset = noise(0.5) - noise(0.0);
        let first = offset.narrow(2, 0, 1).narrow(3, 0, 1);
        assert!((&offset - &first).abs().max().double_value(&[]) < 1e-6);
        let deviation = first.std(true).double_value(&[]);
        assert!((deviation - 0.5).abs() < 0.05, "{deviation}");
    }
}
