//! Steps whose loss or gradient is not what it should be: left out, or gone back from. All ranks see the same numbers, so all
//! of them decide alike.

use std::fs::OpenOptions;
use std::io::Write;
use std::time::{Duration, Instant};

use super::Trainer;
use super::step::PendingStep;
use crate::Error;
use crate::config::{NotFinite, SpikeAction};
use crate::metrics::StepMetrics;
use crate::run_spec::Observer;

/// Steps that may be left out one after the other.
const MOST_SKIPPED: u64 = 10;

/// Times that the run may go back without coming further.
const MOST_ROLLBACKS: u32 = 3;

/// Losses that the recent loss is the mean of, unless spikes are looked for in more.
const RECENT: usize = 100;

/// Samples that are named in a message. All of them are in the file.
const NAMED: usize = 8;

/// Time between two looks at what becomes of a checkpoint that is waited for.
const LOOK: Duration = Duration::from_secs(1);

/// The file that has the samples of such steps.
const FILE: &str = "anomalies.jsonl";

/// What follows from a step's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sequel {
    GoOn,
    GoBack,
}

/// What is made of a loss, after those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Judgement {
    Fine,
    Reported,
    Skipped,
    RolledBack,
    Fatal,
}

impl Trainer {
    /// The loss above which the device leaves a step out: one that it can tell from those below, for it counts in f32.
    pub(super) fn skipped_above(&self) -> f64 {
        let skips = self.job.train.spike.is_some_and(|spike| spike.action == SpikeAction::Skip);
        self.spike_above().filter(|_| skips).map_or(f64::INFINITY, |limit| f64::from(limit as f32))
    }

    /// The loss that is a spike, once there are enough to compare it with.
    fn spike_above(&self) -> Option<f64> {
        let (spike, recent) = (self.job.train.spike?, &self.progress.recent_losses);
        let last = recent.iter().rev().take(spike.window);
        (last.len() == spike.window).then(|| spike.factor * last.sum::<f64>() / spike.window as f64)
    }

    /// Looks at the loss and the gradient of a step.
    ///
    /// # Errors
    /// [`Error::Diverged`] if that cannot be mended as configured.
    pub(super) fn examine(
        &mut self,
        metrics: &StepMetrics,
        pending: &PendingStep,
        observer: &mut dyn Observer,
    ) -> Result<Sequel, Error> {
        let StepMetrics { step, loss, grad_norm, .. } = *metrics;
        let judgement = self.judge(metrics, pending.skipped_above);
        if judgement == Judgement::Fine {
            self.skipped_in_a_row = 0;
            self.remember(loss);
            return Ok(Sequel::GoOn);
        }
        let samples = self.samples_of_all(&pending.samples)?;
        if let Err(problem) = self.write_down(metrics, &samples) {
            observer.log(&format!("the samples of step {step} cannot be written down: {problem}"));
        }
        let named: Vec<u64> = samples.iter().take(NAMED).copied().collect();
        let what = match judgement {
            Judgement::Skipped => "is left out",
            Judgement::RolledBack => "is gone back from",
            Judgement::Fatal => return Err(Error::Diverged { step, loss, grad_norm, samples: named }),
            Judgement::Fine | Judgement::Reported => "is a spike",
        };
        if self.log.is_some() {
            observer.log(&format!(
                "step {step} {what}: its loss is {loss}, its gradient's norm {grad_norm} (sample ids {named:?}; all \
                 {} are in {FILE})",
                samples.len()
            ));
        }
        match judgement {
            Judgement::Skipped => self.counts.skipped_steps += 1,
            Judgement::RolledBack => return Ok(Sequel::GoBack),
            _ => self.remember(loss),
        }
        Ok(Sequel::GoOn)
    }

    /// `skipped_above`: where the device drew the line.
    fn judge(&mut self, metrics: &StepMetrics, skipped_above: f64) -> Judgement {
        let (train, step) = (&self.job.train, metrics.step);
        let finite = metrics.loss.is_finite() && metrics.grad_norm.is_finite();
        let action = train.spike.map(|spike| spike.action);
        let limit = match action {
            Some(SpikeAction::Skip) => skipped_above,
            _ => self.spike_above().unwrap_or(f64::INFINITY),
        };
        let judgement = match (finite, train.not_finite, action) {
            (true, ..) if metrics.loss <= limit => Judgement::Fine,
            (false, NotFinite::Stop, _) => Judgement::Fatal,
            (false, NotFinite::Skip, _) | (true, _, Some(SpikeAction::Skip)) => Judgement::Skipped,
            (false, NotFinite::Rollback, _) | (true, _, Some(SpikeAction::Rollback)) => Judgement::RolledBack,
            (true, ..) => Judgement::Reported,
        };
        match judgement {
            Judgement::Skipped => {
                self.skipped_in_a_row += 1;
                if self.skipped_in_a_row > MOST_SKIPPED { Judgement::Fatal } else { judgement }
            }
            Judgement::RolledBack => {
                let (furthest, times) = self.stuck;
                self.stuck = if step > furthest { (step, 1) } else { (furthest, times + 1) };
                if self.stuck.1 > MOST_ROLLBACKS { Judgement::Fatal } else { judgement }
            }
            judgement => judgement,
        }
    }

    fn remember(&mut self, loss: f64) {
        let most = self.job.train.spike.map_or(RECENT, |spike| spike.window.max(RECENT));
        let recent = &mut self.progress.recent_losses;
        recent.push_back(loss);
        if recent.len() > most {
            recent.pop_front();
        }
    }

    /// The samples of the global batch, from all ranks.
    fn samples_of_all(&self, samples: &[u64]) -> Result<Vec<u64>, Error> {
        let text = serde_json::to_string(samples).unwrap_or_default();
        let texts = self.job.world.texts(&text)?;
        Ok(texts.iter().flat_map(|text| serde_json::from_str::<Vec<u64>>(text).unwrap_or_default()).collect())
    }

    /// Adds a line to the file of such steps.
    fn write_down(&self, metrics: &StepMetrics, samples: &[u64]) -> Result<(), Error> {
        if self.log.is_none() {
            return Ok(());
        }
        let StepMetrics { step, loss, grad_norm, .. } = metrics;
        // JSON has no numbers that are not finite.
        let line = serde_json::json!({
            "step": step, "loss": loss.to_string(), "grad_norm": grad_norm.to_string(), "samples": samples,
        });
        let path = self.job.output.join(FILE);
        let file = OpenOptions::new().create(true).append(true).open(&path);
        file.and_then(|mut file| writeln!(file, "{line}")).map_err(Error::io(&path))
    }

    /// Goes back to the last checkpoint from `step`, and on with the batches that have not come yet.
    ///
    /// # Errors
    /// If there is no checkpoint, or it cannot be read.
    pub(super) fn go_back(&mut self, step: u64, observer: &mut dyn Observer) -> Result<(), Error> {
        while !self.saver.is_idle_within(LOOK) {
            self.tell_saved(observer)?;
        }
        let world = self.job.world.clone();
        let (identity, tell) = (&self.progress.identity, &mut |message: &str| observer.log(message));
        let averaged = |step| self.job.train.averaged_at(step).is_some();
        let restored = self.checkpoints.restore(&mut self.optimizer, identity, &averaged, &world, tell)?;
        let Some(restored) = restored else {
            let message = format!("there is none to go back to from step {step}; save more often");
            return Err(Error::Checkpoint { path: self.job.output.join("checkpoints"), message });
        };
        self.counts.rollbacks += 1;
        let reopen = restored.phase != self.progress.phase;
        if world.is_first() {
            // Of one before it, which is used where the last is damaged, nobody knows.
            let seconds = self.saved_at.elapsed().as_secs_f64();
            let seconds = (restored.step == self.saved).then(|| format!(" and {seconds:.1} s"));
            // A stream of another phase cannot go on in this one.
            let batches = if reopen { "come again: another phase began" } else { "are not seen again" };
            observer.log(&format!(
                "back at step {} of the last checkpoint; {} steps{} are lost, their batches {batches}",
                restored.step,
                step - restored.step,
                seconds.unwrap_or_default()
            ));
            self.reopen_log(restored.step, observer);
        }
        self.reopen = reopen;
        if reopen {
            (self.progress.phase, self.progress.stream) = (restored.phase, restored.stream);
        }
        self.progress.step = restored.step;
        self.progress.samples = restored.samples;
        self.progress.recent_losses = restored.recent_losses;
        (self.saved, self.saved_at, self.owed) = (restored.step, Instant::now(), false);
        self.pending.clear();
        // What was read may lie elsewhere.
        self.recorded.clear();
        Ok(())
    }
}
