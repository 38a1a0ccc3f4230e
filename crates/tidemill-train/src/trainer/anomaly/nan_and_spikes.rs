//! Steps whose loss or gradient is NaN or infinite, or whose loss is a spike: they are reported or
//! skipped, or the run rolls back or ends. All ranks see the same numbers, so all of them decide
//! alike.

use std::collections::VecDeque;

use super::anomalies_log::{ANOMALIES_FILE, append_anomaly};
use super::rollback::ConsecutiveRollbacks;
use crate::Error;
use crate::config::{NonFiniteAction, SpikeAction, SpikeConfig, TrainConfig};
use crate::metrics::StepMetrics;
use crate::observer::Observer;
use crate::parallel::world::World;
use crate::train_spec::TrainSpec;
use crate::trainer::step::step_results::PendingStep;

/// Skipped steps in a row after which a run ends.
const MAX_CONSECUTIVE_SKIPS: u64 = 10;

/// The number of recent losses that are kept at least; more if the spike window is longer.
const RECENT_LOSSES: usize = 100;

/// Sample ids that a message lists. The file lists all of them.
const LISTED_SAMPLES: usize = 8;

/// Decides what follows from the loss and the gradient of each step.
pub(crate) struct AnomalyTracker {
    not_finite: NonFiniteAction,
    spike: Option<SpikeConfig>,
    /// Steps skipped since the last normal one.
    consecutive_skips: u64,
    consecutive_rollbacks: ConsecutiveRollbacks,
    /// Steps of this process that were skipped.
    pub skipped_steps: u64,
    /// Times that this process rolled back.
    pub rollbacks: u64,
}

/// What the trainer does after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextAction {
    Continue,
    RollBack,
}

/// The verdict on a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Normal,
    ReportedSpike,
    Skipped,
    RolledBack,
    Fatal,
}

impl AnomalyTracker {
    /// A tracker with the settings of `[train]`.
    pub fn new(train: &TrainConfig) -> Self {
        Self {
            not_finite: train.not_finite,
            spike: train.spike,
            consecutive_skips: 0,
            consecutive_rollbacks: ConsecutiveRollbacks::default(),
            skipped_steps: 0,
            rollbacks: 0,
        }
    }

    /// The loss above which the device skips a step. It is rounded to f32, because the device
    /// compares in f32.
    pub fn skip_above(&self, recent_losses: &VecDeque<f64>) -> f64 {
        let skips_spikes = self.spike.is_some_and(|spike| spike.action == SpikeAction::Skip);
        let threshold = self.spike_threshold(recent_losses).filter(|_| skips_spikes);
        threshold.map_or(f64::INFINITY, |threshold| f64::from(threshold as f32))
    }

    /// The loss above which a loss is a spike, once there are enough losses to compare it with.
    fn spike_threshold(&self, recent_losses: &VecDeque<f64>) -> Option<f64> {
        let spike = self.spike?;
        let window = recent_losses.iter().rev().take(spike.window);
        (window.len() == spike.window).then(|| spike.factor * window.sum::<f64>() / spike.window as f64)
    }

    /// Examines the loss and the gradient of a step, and adds the loss to the recent losses unless
    /// the step was undone. All ranks call this together.
    ///
    /// # Errors
    /// [`Error::Diverged`] if the configuration does not allow the run to continue.
    pub fn examine_step(
        &mut self,
        spec: &TrainSpec,
        metrics: &StepMetrics,
        pending: &PendingStep,
        recent_losses: &mut VecDeque<f64>,
        observer: &mut dyn Observer,
    ) -> Result<NextAction, Error> {
        let StepMetrics { step, loss, grad_norm, .. } = *metrics;
        let verdict = self.judge(metrics, pending.skip_above, recent_losses);
        if verdict == Verdict::Normal {
            self.consecutive_skips = 0;
            self.push_loss(recent_losses, loss);
            return Ok(NextAction::Continue);
        }
        let samples = gather_samples(&spec.world, &pending.samples)?;
        if spec.world.is_first()
            && let Err(problem) = append_anomaly(&spec.output, metrics, &samples)
        {
            observer.log(&format!("the samples of step {step} cannot be written to a file: {problem}"));
        }
        let listed: Vec<u64> = samples.iter().take(LISTED_SAMPLES).copied().collect();
        let what = match verdict {
            Verdict::Skipped => "is skipped",
            Verdict::RolledBack => "is rolled back",
            Verdict::Fatal => return Err(Error::Diverged { step, loss, grad_norm, samples: listed }),
            Verdict::Normal | Verdict::ReportedSpike => "is a spike",
        };
        if spec.world.is_first() {
            observer.log(&format!(
                "step {step} {what}: its loss is {loss}, its gradient norm {grad_norm} (sample ids \
                 {listed:?}; all {} are in {ANOMALIES_FILE})",
                samples.len()
            ));
        }
        match verdict {
            Verdict::Skipped => self.skipped_steps += 1,
            Verdict::RolledBack => return Ok(NextAction::RollBack),
            _ => self.push_loss(recent_losses, loss),
        }
        Ok(NextAction::Continue)
    }

    /// Judges a step; `skip_above` is the threshold that the device has used for it.
    fn judge(&mut self, metrics: &StepMetrics, skip_above: f64, recent_losses: &VecDeque<f64>) -> Verdict {
        let is_finite = metrics.loss.is_finite() && metrics.grad_norm.is_finite();
        let action = self.spike.map(|spike| spike.action);
        let threshold = match action {
            Some(SpikeAction::Skip) => skip_above,
            _ => self.spike_threshold(recent_losses).unwrap_or(f64::INFINITY),
        };
        let verdict = match (is_finite, self.not_finite, action) {
            (true, ..) if metrics.loss <= threshold => Verdict::Normal,
            (false, NonFiniteAction::Stop, _) => Verdict::Fatal,
            (false, NonFiniteAction::Skip, _) | (true, _, Some(SpikeAction::Skip)) => Verdict::Skipped,
            (false, NonFiniteAction::Rollback, _) | (true, _, Some(SpikeAction::Rollback)) => {
                Verdict::RolledBack
            }
            (true, ..) => Verdict::ReportedSpike,
        };
        match verdict {
            Verdict::Skipped => {
                self.consecutive_skips += 1;
                if self.consecutive_skips > MAX_CONSECUTIVE_SKIPS { Verdict::Fatal } else { verdict }
            }
            Verdict::RolledBack => {
                let is_too_often = self.consecutive_rollbacks.record(metrics.step);
                if is_too_often { Verdict::Fatal } else { verdict }
            }
            verdict => verdict,
        }
    }

    fn push_loss(&self, recent_losses: &mut VecDeque<f64>, loss: f64) {
        let capacity = self.spike.map_or(RECENT_LOSSES, |spike| spike.window.max(RECENT_LOSSES));
        recent_losses.push_back(loss);
        if recent_losses.len() > capacity {
            recent_losses.pop_front();
        }
    }
}

/// The sample ids of the global batch, from all ranks. All ranks call this together.
fn gather_samples(world: &World, samples: &[u64]) -> Result<Vec<u64>, Error> {
    let text = serde_json::to_string(samples).unwrap_or_default();
    let texts = world.all_gather_text(&text)?;
    Ok(texts.iter().flat_map(|text| serde_json::from_str::<Vec<u64>>(text).unwrap_or_default()).collect())
}
