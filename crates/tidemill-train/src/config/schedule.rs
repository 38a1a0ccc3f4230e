//! What the learning rate is at each step.

use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

use super::TrainConfig;

/// What the learning rate does after warm-up, over a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LrSchedule {
    /// It stays.
    Constant,
    /// It falls to 0 in a straight line.
    Linear,
    /// It falls to 0 along half a cosine.
    Cosine,
}

impl LrSchedule {
    /// What is left of the learning rate when this share of what follows warm-up is done.
    fn left(self, done: f64) -> f64 {
        match self {
            Self::Constant => 1.0,
            Self::Linear => 1.0 - done,
            Self::Cosine => 0.5 * (1.0 + (PI * done).cos()),
        }
    }
}

impl TrainConfig {
    /// The learning rate of `step`, counted from 0 over all phases. A phase with a warm-up of its own starts from 0 again. As in
    /// diffusers' `get_scheduler` it falls only when it has risen, over the rest of the phase.
    pub fn learning_rate_at(&self, step: u64) -> f64 {
        let Some((index, first)) = self.phase_at(step) else { return 0.0 };
        let phase = &self.phase[index];
        let base = phase.learning_rate.unwrap_or(self.learning_rate);
        let (before, over) = phase.warmup_steps.map_or((first, self.warmup_steps), |own| (0, own));
        // Of a warm-up over all phases, what reaches into this one.
        let (since, rising) = (step - first, over.saturating_sub(before));
        if since < rising {
            return base * (before + since + 1) as f64 / over as f64;
        }
        let done = (since - rising) as f64 / (phase.steps - rising) as f64;
        base * phase.schedule.unwrap_or(self.schedule).left(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PhaseConfig;

    fn config(schedule: LrSchedule) -> TrainConfig {
        let phase = |steps| PhaseConfig { steps, ..PhaseConfig::at(256) };
        let second = PhaseConfig { learning_rate: Some(1e-5), ..phase(5) };
        let third = PhaseConfig { warmup_steps: Some(2), schedule: Some(LrSchedule::Constant), ..phase(4) };
        TrainConfig {
            warmup_steps: 4,
            schedule,
            phase: vec![phase(10), second, third],
            ..TrainConfig::default()
        }
    }

    #[test]
    fn learning_rates_follow_warm_up_and_phases() {
        for (schedule, expected) in [
            (LrSchedule::Constant, [0.25e-4, 1e-4, 1e-4, 1e-5, 1e-5, 0.5e-4, 1e-4, 1e-4]),
            (LrSchedule::Linear, [0.25e-4, 1e-4, 1e-4 / 6.0, 1e-5, 0.2e-5, 0.5e-4, 1e-4, 1e-4]),
            // Half a cosine is at a half in the middle: see below.
            (
                LrSchedule::Cosine,
                [0.25e-4, 1e-4, 0.066_987_298e-4, 1e-5, 0.095_491_503e-5, 0.5e-4, 1e-4, 1e-4],
            ),
        ] {
            let config = config(schedule);
            let rates = [0, 3, 9, 10, 14, 15, 16, 18].map(|step| config.learning_rate_at(step));
            for (rate, expected) in rates.iter().zip(expected) {
                assert!((rate - expected).abs() < 1e-11, "{schedule:?}: {rates:?}");
            }
        }
        assert!((config(LrSchedule::Cosine).learning_rate_at(7) - 0.5e-4).abs() < 1e-12);
        // A warm-up that is not over when the first phase is.
        let long = TrainConfig { warmup_steps: 12, ..config(LrSchedule::Linear) };
        let rates = [9, 10, 11, 12, 14].map(|step| long.learning_rate_at(step));
        for (rate, expected) in rates.iter().zip([10e-4 / 12.0, 11e-5 / 12.0, 1e-5, 1e-5, 1e-5 / 3.0]) {
            assert!((rate - expected).abs() < 1e-11, "{rates:?}");
        }
        assert_eq!(config(LrSchedule::Constant).phase_at(19), None);
    }
}
