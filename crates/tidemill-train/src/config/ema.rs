//! `[train.ema]`: the exponential moving average of the weights, and its decay at each step.

use serde::{Deserialize, Serialize};

/// `[train.ema]`
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EmaConfig {
    /// Weight of the old average at each step.
    pub decay: f64,
    /// The step, counted over all phases, at which averaging starts with a copy of the weights.
    pub start_step: u64,
    /// Whether the decay rises to `decay` during the first steps, so that the average soon forgets
    /// the weights it started with.
    pub warmup: bool,
}

impl Default for EmaConfig {
    fn default() -> Self {
        Self { decay: 0.9999, start_step: 0, warmup: true }
    }
}

impl EmaConfig {
    /// The decay of `step`, counted from 0 over all phases; `None` before averaging starts. During
    /// warm-up it rises like that of diffusers' `EMAModel`: (1 + n) / (10 + n) after n steps.
    pub(super) fn decay_at(self, step: u64) -> Option<f64> {
        let Self { decay, start_step, warmup } = self;
        if step < start_step {
            return None;
        }
        let averaged_steps = (step - start_step.min(step)) as f64;
        let rising = (1.0 + averaged_steps) / (10.0 + averaged_steps);
        Some(if warmup { decay.min(rising) } else { decay })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ema_decay_warms_up_like_diffusers() {
        let ema = EmaConfig { decay: 0.9, start_step: 5, warmup: true };
        assert_eq!(ema.decay_at(4), None);
        // diffusers' EMAModel copies the weights at its first step.
        let expected = [2.0 / 11.0, 3.0 / 12.0, 11.0 / 20.0, 0.9].map(Some);
        assert_eq!([6, 7, 15, 86].map(|step| ema.decay_at(step)), expected);
        assert_eq!(EmaConfig { warmup: false, ..ema }.decay_at(6), Some(0.9));
    }
}
