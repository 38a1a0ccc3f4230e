//! What failures cost, and how often to save checkpoints: Young (*A first order approximation to the
//! optimum checkpoint interval*, 1974) and Daly (*A higher order estimate of the optimum checkpoint
//! interval for restart dumps*, 2006).

use serde::{Deserialize, Serialize};

use crate::error::{Result, check_positive};

/// `[plan.failures]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FailureConfig {
    /// Hours that a GPU works between two failures which end the run, on average. The default is what
    /// MosaicML saw with A100s: two failures in 20,051 hours.
    pub gpu_hours: f64,
    /// Hours that a spot node works until it is taken away, on average. Unset: spot prices are not
    /// compared.
    pub spot_hours: Option<f64>,
    /// Minutes from a failure to the first new step.
    pub restart_minutes: f64,
    /// Seconds that training stops for a checkpoint.
    pub checkpoint_seconds: f64,
}

impl Default for FailureConfig {
    fn default() -> Self {
        Self { gpu_hours: 10_000.0, spot_hours: None, restart_minutes: 5.0, checkpoint_seconds: 5.0 }
    }
}

impl FailureConfig {
    /// Refuses times that cannot be.
    ///
    /// # Errors
    /// The first of them.
    pub fn validate(&self) -> Result<()> {
        let key = |key: &'static str| move || format!("plan.failures.{key}");
        check_positive(Some(self.gpu_hours), key("gpu_hours"), "hours between failures")?;
        check_positive(self.spot_hours, key("spot_hours"), "hours between interruptions")?;
        check_positive(Some(self.restart_minutes), key("restart_minutes"), "minutes")?;
        check_positive(Some(self.checkpoint_seconds), key("checkpoint_seconds"), "seconds")
    }

    /// Hours between two interruptions of a run on `nodes` nodes with `gpus` GPUs in all, which are
    /// spot nodes or not. None if that is not known.
    pub fn hours_between(&self, gpus: u64, nodes: u64, is_spot: bool) -> Option<f64> {
        let failures = gpus.max(1) as f64 / self.gpu_hours;
        match is_spot {
            true => self.spot_hours.map(|hours| 1.0 / (failures + nodes as f64 / hours)),
            false => Some(1.0 / failures),
        }
    }
}

/// What failures do to a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct FailureCost {
    /// Hours between two failures of any of the run's machines.
    pub hours_between_failures: f64,
    /// Minutes between two checkpoints that lose the least time.
    pub checkpoint_minutes: f64,
    /// Hours with checkpoints, lost steps and restarts.
    pub hours: f64,
    /// The number of failures to expect.
    pub failures: f64,
}

/// The expected time of a run that would take `hours` without failures.
pub fn failure_cost(config: &FailureConfig, hours: f64, hours_between_failures: f64) -> FailureCost {
    let (between, restart) = (hours_between_failures, config.restart_minutes / 60.0);
    let write = config.checkpoint_seconds / 3600.0;
    // A run that is shorter than the interval has one checkpoint, at its end.
    let interval = checkpoint_interval(write, between).min(hours);
    // Daly's complete model (his equation 20).
    let expected =
        between * (restart / between).exp() * ((interval + write) / between).exp_m1() * hours / interval;
    FailureCost {
        hours_between_failures: between,
        checkpoint_minutes: 60.0 * interval,
        hours: expected,
        failures: expected / between,
    }
}

/// The time between checkpoints that loses the least, where writing one stops the run for `write`
/// and failures are `between` apart (Daly's equation 37; its first term is Young's). All in one
/// unit of time.
pub fn checkpoint_interval(write: f64, between: f64) -> f64 {
    if write >= 2.0 * between {
        return between;
    }
    let ratio = (write / (2.0 * between)).sqrt();
    (2.0 * write * between).sqrt() * (1.0 + ratio / 3.0 + ratio * ratio / 9.0) - write
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_other_interval_takes_less_time() {
        let config =
            FailureConfig { restart_minutes: 10.0, checkpoint_seconds: 120.0, ..FailureConfig::default() };
        for between in [1.0, 10.0, 100.0] {
            let best = failure_cost(&config, 500.0, between);
            let write = config.checkpoint_seconds / 3600.0;
            let hours_at = |interval: f64| {
                between
                    * (config.restart_minutes / 60.0 / between).exp()
                    * ((interval + write) / between).exp_m1()
                    * 500.0
                    / interval
            };
            let interval = best.checkpoint_minutes / 60.0;
            assert!((best.hours - hours_at(interval)).abs() < 1e-9);
            for factor in [0.5, 0.8, 1.25, 2.0] {
                assert!(hours_at(interval * factor) > best.hours, "{between} h, x{factor}");
            }
            // Young's approximation holds where checkpoints are short.
            let young = (2.0 * write * between).sqrt();
            assert!((interval / young - 1.0).abs() < 0.2, "{interval} {young}");
        }
    }

    #[test]
    fn spot_nodes_add_their_interruptions() {
        let config = FailureConfig { spot_hours: Some(100.0), ..FailureConfig::default() };
        assert_eq!(config.hours_between(32, 4, false), Some(10_000.0 / 32.0));
        let spot = config.hours_between(32, 4, true).unwrap_or_default();
        assert!((spot - 1.0 / (0.0032 + 0.04)).abs() < 1e-9);
        assert_eq!(FailureConfig::default().hours_between(32, 4, true), None);
    }

    #[test]
    fn a_short_run_has_one_checkpoint() {
        let cost = failure_cost(&FailureConfig::default(), 0.1, 10_000.0);
        assert!((cost.checkpoint_minutes - 6.0).abs() < 1e-9);
        assert!(cost.hours > 0.1 && cost.hours < 0.102);
    }
}
