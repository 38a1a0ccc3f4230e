//! The preconditioned networks of Karras et al., *Elucidating the Design Space of Diffusion-Based Generative
//! Models* (EDM), 2022, as diffusers' EDMEulerScheduler has them.
//!
//! Noisy latents are latents + sigma noise. The network sees them scaled to unit variance, and its output is scaled
//! and added to a part of them, so that what it has to predict has unit variance at every noise level.

use serde::{Deserialize, Serialize};

/// The noise levels of EDM, and the spread of the latents.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EdmConfig {
    /// The least noise.
    pub sigma_min: f64,
    /// The most noise.
    pub sigma_max: f64,
    /// Standard deviation of the latents as the network takes them.
    pub sigma_data: f64,
    /// How noise levels are spaced between `sigma_min` and `sigma_max`.
    pub sigma_schedule: SigmaSchedule,
    /// Exponent of [`SigmaSchedule::Karras`].
    pub rho: f64,
}

/// How noise levels are spaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SigmaSchedule {
    /// sigma^(1 / rho) is evenly spaced.
    Karras,
    /// The logarithm of sigma is evenly spaced.
    Exponential,
}

impl Default for EdmConfig {
    /// The paper's, and the defaults of EDMEulerScheduler.
    fn default() -> Self {
        Self {
            sigma_min: 0.002,
            sigma_max: 80.0,
            sigma_data: 0.5,
            sigma_schedule: SigmaSchedule::Karras,
            rho: 7.0,
        }
    }
}

impl EdmConfig {
    /// The noise level at a place from 0 (`sigma_max`) to 1 (`sigma_min`).
    pub fn sigma(&self, place: f64) -> f64 {
        let [min, max] = [self.sigma_min, self.sigma_max].map(|sigma| self.warp(sigma));
        let warped = max + place * (min - max);
        match self.sigma_schedule {
            SigmaSchedule::Karras => warped.powf(self.rho),
            SigmaSchedule::Exponential => warped.exp(),
        }
    }

    /// The function of sigma that is evenly spaced.
    fn warp(&self, sigma: f64) -> f64 {
        match self.sigma_schedule {
            SigmaSchedule::Karras => sigma.powf(1.0 / self.rho),
            SigmaSchedule::Exponential => sigma.ln(),
        }
    }

    /// The noise levels of `count` timesteps, from little noise to much. As in EDMEulerScheduler, where they are in
    /// reverse order, `sigma_min` itself comes after the last of them.
    pub fn sigmas(&self, count: i64) -> Vec<f32> {
        (1..=count).rev().map(|i| self.sigma((i - 1) as f64 / count as f64) as f32).collect()
    }

    /// The one of `count` timesteps whose noise level is the nearest.
    pub fn nearest_timestep(&self, sigma: f64, count: i64) -> i64 {
        let [min, max, this] = [self.sigma_min, self.sigma_max, sigma].map(|sigma| self.warp(sigma));
        let place = (this - max) / (min - max);
        let from_last = (place.clamp(0.0, 1.0) * count as f64).round() as i64;
        (count - 1 - from_last).clamp(0, count - 1)
    }

    /// What is wrong with it, if anything is.
    pub fn find_problem(&self) -> Option<String> {
        let Self { sigma_min, sigma_max, sigma_data, rho, .. } = *self;
        if !(0.0 < sigma_min && sigma_min < sigma_max && sigma_max.is_finite()) {
            return Some(format!(
                "sigma_min = {sigma_min} must be above 0 and below sigma_max = {sigma_max}, a finite number"
            ));
        }
        let named = [("sigma_data", sigma_data), ("rho", rho)];
        if let Some((key, value)) = named.iter().find(|(_, value)| !(*value > 0.0 && value.is_finite())) {
            return Some(format!("{key} = {value} must be a positive number"));
        }
        // A very small rho, whose powers no f64 holds.
        let ends = [0.0, 1.0].map(|place| self.sigma(place));
        let is_bad = ends.iter().any(|sigma| !(*sigma > 0.0 && sigma.is_finite()));
        is_bad.then(|| format!("rho = {rho} gives noise levels that are no numbers; 7 is usual"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_noise_level_is_the_nearest_to_itself() {
        for sigma_schedule in [SigmaSchedule::Karras, SigmaSchedule::Exponential] {
            let edm = EdmConfig { sigma_schedule, ..EdmConfig::default() };
            let sigmas = edm.sigmas(50);
            assert!(sigmas.is_sorted() && sigmas[49] == 80.0);
            for (timestep, sigma) in sigmas.iter().enumerate() {
                assert_eq!(edm.nearest_timestep(f64::from(*sigma), 50), timestep as i64);
            }
            assert_eq!([1e-9, 1e9].map(|sigma| edm.nearest_timestep(sigma, 50)), [0, 49]);
            assert_eq!([0.0, f64::INFINITY].map(|sigma| edm.nearest_timestep(sigma, 50)), [0, 49]);
        }
    }

    #[test]
    fn unusable_noise_levels_are_refused() {
        let good = EdmConfig::default();
        assert_eq!(good.find_problem(), None);
        for (bad, key) in [
            (EdmConfig { sigma_min: 0.0, ..good }, "sigma_min"),
            (EdmConfig { sigma_max: 0.001, ..good }, "sigma_max"),
            (EdmConfig { sigma_data: f64::NAN, ..good }, "sigma_data"),
            (EdmConfig { rho: -1.0, ..good }, "rho"),
            (EdmConfig { rho: 0.005, ..good }, "rho"),
        ] {
            assert!(bad.find_problem().unwrap().contains(key));
        }
    }
}
