//! The learning rate of each step: warm-up, then constant, linear or cosine decay over a phase.

use std::f64::consts::PI;

use crate::config::{LrSchedule, TrainConfig};

/// The factor of the learning rate after the share `progress` of the steps that follow warm-up.
fn decay_factor(schedule: LrSchedule, progress: f64) -> f64 {
    match schedule {
        LrSchedule::Constant => 1.0,
        LrSchedule::Linear => 1.0 - progress,
        LrSchedule::Cosine => 0.5 * (1.0 + (PI * progress).cos()),
    }
}

impl TrainConfig {
    /// The learning rate of `step`, counted from 0 over all phases. A phase with a warm-up of its
    /// own starts from 0 again. As in diffusers' `get_scheduler`, decay starts after warm-up and
    /// ends with the phase.
    pub fn learning_rate_at(&self, step: u64) -> f64 {
        let Some((index, phase_start)) = self.phase_at(step) else { return 0.0 };
        let phase = &self.phase[index];
        let base = phase.learning_rate.unwrap_or(self.learning_rate);
        // The run's warm-up counts from its first step, that of a phase from the phase's first
        // step.
        let (before, warmup_steps) =
            phase.warmup_steps.map_or((phase_start, self.warmup_steps), |own| (0, own));
        let (since, rising) = (step - phase_start, warmup_steps.saturating_sub(before));
        if since < rising {
            return base * (before + since + 1) as f64 / warmup_steps as f64;
        }
        let progress = (since - rising) as f64 / (phase.steps - rising) as f64;
        base * decay_factor(phase.schedule.unwrap_or(self.schedule), progress)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PhaseConfig;

    fn config(schedule: LrSchedule) -> TrainConfig {
        let phase = |steps| PhaseConfig { steps, ..PhaseConfig::new(256) };
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
    fn learning_rate_follows_warmup_and_phases() {
        for (schedule, expected) in [
            (LrSchedule::Constant, [0.25e-4, 1e-4, 1e-4, 1e-5, 1e-5, 0.5e-4, 1e-4, 1e-4]),
            (LrSchedule::Linear, [0.25e-4, 1e-4, 1e-4 / 6.0, 1e-5, 0.2e-5, 0.5e-4, 1e-4, 1e-4]),
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
        // In the middle half a cosine is at one half.
        assert!((config(LrSchedule::Cosine).learning_rate_at(7) - 0.5e-4).abs() < 1e-12);
        // A warm-up that is longer than the first phase continues in the second.
        let long = TrainConfig { warmup_steps: 12, ..config(LrSchedule::Linear) };
        let rates = [9, 10, 11, 12, 14].map(|step| long.learning_rate_at(step));
        for (rate, expected) in rates.iter().zip([10e-4 / 12.0, 11e-5 / 12.0, 1e-5, 1e-5, 1e-5 / 3.0]) {
            assert!((rate - expected).abs() < 1e-11, "{rates:?}");
        }
        assert_eq!(config(LrSchedule::Constant).phase_at(19), None);
    }
}
