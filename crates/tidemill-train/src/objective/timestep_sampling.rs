//! Samples timesteps, and sorts them into bins for the loss by timestep.

use tch::{Kind, Tensor};
use tidemill_models::EdmConfig;

use super::philox::{Draw, Purpose};
use super::sample_keys::SampleKeys;
use crate::config::TimestepSampling;

/// The timesteps of a noise schedule.
#[derive(Clone, Copy, Debug)]
pub struct TimestepLevels {
    /// How many there are.
    pub count: i64,
    /// Their noise levels, if they are EDM's.
    pub edm: Option<EdmConfig>,
}

/// Samples one of the schedule's timesteps for each row.
pub fn sample_timesteps(
    sampling: TimestepSampling,
    levels: TimestepLevels,
    seed: u64,
    keys: SampleKeys<'_>,
) -> Vec<i64> {
    let count = levels.count;
    // A share of 1 can come out of rounding.
    let to_timestep = |share: f64| ((share * count as f64) as i64).min(count - 1);
    let draws = || keys.draws(seed, Purpose::Timestep);
    match sampling {
        TimestepSampling::Uniform => {
            draws().map(|draw| i64::from(draw.uniform_below(count as u32))).collect()
        }
        TimestepSampling::LogitNormal { mean, std } => {
            let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
            draws().map(|draw| to_timestep(sigmoid(mean + std * draw.normal()))).collect()
        }
        TimestepSampling::LogNormal { mean, std } => {
            // Only schedules of EDM are combined with it.
            let edm = levels.edm.unwrap_or_default();
            draws().map(|draw| edm.nearest_timestep((mean + std * draw.normal()).exp(), count)).collect()
        }
        TimestepSampling::Stratified => {
            let first = f64::from(Draw::new(seed, 0, keys.step, Purpose::Stratum).uniform());
            let share = |position: &u32| (first + f64::from(*position) / keys.global_batch as f64).fract();
            keys.positions.iter().map(|position| to_timestep(share(position))).collect()
        }
    }
}

/// The index of each timestep's bin, of `bins` equal parts of the schedule's `count` timesteps:
/// [N], i64.
pub fn find_bins(timesteps: &Tensor, count: i64, bins: usize) -> Tensor {
    (timesteps * bins as i64).divide_scalar_mode(count, "floor").to_kind(Kind::Int64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEVELS: TimestepLevels = TimestepLevels { count: 1000, edm: None };

    fn sample(sampling: TimestepSampling, step: u64, count: usize) -> Vec<i64> {
        let ids: Vec<u64> = (0..count as u64).collect();
        let (positions, epochs): (Vec<u32>, _) = ((0..count as u32).collect(), vec![0; count]);
        let keys = SampleKeys {
            step,
            global_batch: count,
            positions: &positions,
            sample_ids: &ids,
            epochs: &epochs,
        };
        sample_timesteps(sampling, LEVELS, 1, keys)
    }

    #[test]
    fn timesteps_follow_their_distribution() {
        let mean = |drawn: &[i64]| drawn.iter().sum::<i64>() as f64 / drawn.len() as f64;
        assert!((mean(&sample(TimestepSampling::Uniform, 0, 4000)) - 499.5).abs() < 15.0);
        // E sigmoid(x) and the share below 1/2, of x normal around -1 with deviation 1/2: 0.2784
        // and Phi(2) = 0.9772.
        let early = sample(TimestepSampling::LogitNormal { mean: -1.0, std: 0.5 }, 0, 4000);
        let below = early.iter().filter(|t| **t < 500).count() as f64 / 4000.0;
        assert!(
            (mean(&early) - 278.0).abs() < 6.0 && (below - 0.9772).abs() < 0.01,
            "{} {below}",
            mean(&early)
        );
        // Rounding ends at the last timestep.
        let late = sample(TimestepSampling::LogitNormal { mean: 1e3, std: 1.0 }, 0, 8);
        assert!(late.iter().all(|t| *t == 999));
    }

    #[test]
    fn noise_levels_of_edm_are_log_normal() {
        let ids: Vec<u64> = (0..4000).collect();
        let (positions, epochs): (Vec<u32>, _) = ((0..4000).collect(), vec![0; 4000]);
        let (step, global_batch) = (0, 4000);
        let keys =
            SampleKeys { step, global_batch, positions: &positions, sample_ids: &ids, epochs: &epochs };
        let edm = EdmConfig::default();
        let (sigmas, levels) = (edm.sigmas(1000), TimestepLevels { count: 1000, edm: Some(edm) });
        let timesteps =
            sample_timesteps(TimestepSampling::LogNormal { mean: -1.2, std: 1.2 }, levels, 1, keys);
        let logs: Vec<f64> = timesteps.iter().map(|t| f64::from(sigmas[*t as usize]).ln()).collect();
        let mean = logs.iter().sum::<f64>() / 4000.0;
        let std = (logs.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 4000.0).sqrt();
        assert!((mean + 1.2).abs() < 0.06 && (std - 1.2).abs() < 0.05, "{mean} {std}");
    }

    #[test]
    fn strata_cover_the_global_batch_however_it_is_split() {
        let all = sample(TimestepSampling::Stratified, 3, 50);
        let mut strata: Vec<i64> = all.iter().map(|t| t / 20).collect();
        strata.sort_unstable();
        strata.dedup();
        assert!(strata.len() >= 49, "one row in each stratum, up to rounding: {all:?}");
        assert_ne!(all, sample(TimestepSampling::Stratified, 4, 50));
        let (ids, epochs, positions): (_, _, Vec<u32>) = ([7u64; 20], [0; 20], (30..50).collect());
        let part = SampleKeys {
            step: 3,
            global_batch: 50,
            positions: &positions,
            sample_ids: &ids,
            epochs: &epochs,
        };
        assert_eq!(sample_timesteps(TimestepSampling::Stratified, LEVELS, 1, part), all[30..]);
    }

    #[test]
    fn first_bin_has_least_noise() {
        let timesteps = Tensor::from_slice(&[0i64, 99, 100, 999]);
        assert_eq!(Vec::<i64>::try_from(&find_bins(&timesteps, 1000, 10)).unwrap(), [0, 0, 1, 9]);
    }
}
