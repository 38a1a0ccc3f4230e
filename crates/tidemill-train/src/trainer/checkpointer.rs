//! Saving and restoring the run: when a checkpoint is due, what is being written in the background,
//! and what is committed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::Error;
use crate::checkpoint::background_writer::{BackgroundWriter, WriteEvent};
use crate::checkpoint::state_copy::StateCopy;
use crate::checkpoint::{Checkpoints, Progress, Writer};
use crate::observer::Observer;
use crate::optimizer::Optimizer;
use crate::parallel::world::World;
use crate::train_spec::TrainSpec;

/// How long a run tries to write its last checkpoint when it ends.
const FINAL_CHECKPOINT_TIMEOUT: Duration = Duration::from_secs(60);

/// How often a run that waits for a checkpoint reports what the writer has done.
const EVENT_INTERVAL: Duration = Duration::from_secs(1);

/// Saves the run at intervals, in the background.
pub(crate) struct Checkpointer {
    checkpoints: Arc<Checkpoints>,
    background_writer: BackgroundWriter,
    /// This process as a writer of the run's checkpoints, until it has taken the run over from the
    /// process that trained it before.
    pending_takeover: Option<Writer>,
    /// A checkpoint is due. It is taken as soon as no rank is writing one.
    is_due: bool,
    /// Whether any rank was still writing a checkpoint, as of the last step with known results.
    pub is_any_rank_writing: bool,
    /// The last step whose state was copied for the writer.
    last_saved_step: u64,
    last_saved_at: Instant,
    /// The last step with a committed checkpoint.
    pub last_committed_step: u64,
    /// Failed attempts to write a checkpoint.
    pub failed_writes: u64,
    /// Seconds that steps waited for checkpoints.
    pub stall_seconds: f64,
}

impl Checkpointer {
    /// A checkpointer of a run that starts or resumes at `step`.
    ///
    /// # Errors
    /// If the background thread cannot be started.
    pub fn new(checkpoints: Arc<Checkpoints>, writer: Writer, step: u64) -> Result<Self, Error> {
        Ok(Self {
            background_writer: BackgroundWriter::start(checkpoints.clone(), writer.clone())?,
            checkpoints,
            pending_takeover: Some(writer),
            is_due: false,
            is_any_rank_writing: false,
            last_saved_step: step,
            last_saved_at: Instant::now(),
            last_committed_step: step,
            failed_writes: 0,
            stall_seconds: 0.0,
        })
    }

    /// Takes the run over from the process that trained it before, unless this was done. All ranks
    /// call this together.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub fn take_over_run(&mut self, world: &World, identity: &Value) -> Result<(), Error> {
        match self.pending_takeover.take() {
            Some(writer) => {
                world.run_on_first_rank(|| self.checkpoints.acquire_ownership(identity, &writer)).map(drop)
            }
            None => Ok(()),
        }
    }

    /// Whether this rank is writing a checkpoint.
    pub fn is_writing(&self) -> bool {
        self.background_writer.is_busy()
    }

    /// Marks a checkpoint as due if `is_due`. Returns whether one is due, from now or from before.
    pub fn update_due(&mut self, is_due: bool) -> bool {
        self.is_due |= is_due;
        self.is_due
    }

    /// Saves the state of the run, unless that of this step was saved before. The steps wait until
    /// the state is copied; a thread writes the copy.
    ///
    /// # Errors
    /// If memory does not suffice for the copy, or the thread has died.
    pub fn save(
        &mut self,
        spec: &TrainSpec,
        optimizer: &Optimizer,
        progress: &Progress,
    ) -> Result<(), Error> {
        self.is_due = false;
        if progress.step <= self.last_saved_step {
            return Ok(());
        }
        let started = Instant::now();
        let writers = spec.checkpoint.writers;
        let state_copy = StateCopy::capture(optimizer, progress, &spec.world, writers)?;
        if !spec.world.ranks_to_save(writers).is_empty() {
            self.background_writer.enqueue(state_copy)?;
        }
        (self.last_saved_step, self.last_saved_at) = (progress.step, started);
        self.stall_seconds += started.elapsed().as_secs_f64();
        Ok(())
    }

    /// Reports what the background writer has done since the last call.
    ///
    /// # Errors
    /// [`Error::Overtaken`].
    pub fn report_events(&mut self, world: &World, observer: &mut dyn Observer) -> Result<(), Error> {
        for event in self.background_writer.drain_events().collect::<Vec<_>>() {
            match event {
                WriteEvent::Committed { step } => {
                    self.last_committed_step = step;
                    if world.is_first() {
                        observer.on_checkpoint(step);
                        observer.log(&format!("checkpoint of step {step} is committed"));
                    }
                }
                WriteEvent::Failed { step, reason, retry_in } => {
                    self.failed_writes += 1;
                    observer.log(&format!(
                        "checkpoint of step {step} cannot be written: {reason}; training continues, the \
                         next attempt is in {retry_in:?}"
                    ));
                }
                WriteEvent::NotDeleted { reason } => observer.log(&format!(
                    "checkpoints beyond checkpoint.keep cannot be removed: {reason}; they stay, and \
                     training continues"
                )),
                WriteEvent::Overtaken => self.background_writer.finish(Duration::ZERO)?,
            }
        }
        Ok(())
    }

    /// Waits until the background writer has nothing left to write.
    ///
    /// # Errors
    /// [`Error::Overtaken`].
    pub fn wait_until_written(&mut self, world: &World, observer: &mut dyn Observer) -> Result<(), Error> {
        while !self.background_writer.wait_until_idle(EVENT_INTERVAL) {
            self.report_events(world, observer)?;
        }
        Ok(())
    }

    /// Ends the background writer after the last checkpoint is written. All ranks wait for each
    /// other, because the first rank commits: a run that resumed before that would read an older
    /// checkpoint, or none.
    ///
    /// # Errors
    /// If any rank could not write its last checkpoint.
    pub fn finish(&mut self, world: &World, observer: &mut dyn Observer) -> Result<(), Error> {
        let finished = self.background_writer.finish(FINAL_CHECKPOINT_TIMEOUT);
        self.report_events(world, observer)?;
        world.propagate_error(finished)
    }

    /// Loads the last intact checkpoint into the optimizer and the network. All ranks call this
    /// together.
    ///
    /// # Errors
    /// If a checkpoint cannot be read or belongs to another run.
    pub fn restore(
        &self,
        spec: &TrainSpec,
        identity: &Value,
        optimizer: &mut Optimizer,
        observer: &mut dyn Observer,
    ) -> Result<Option<Progress>, Error> {
        let averages_at = |step| spec.train.ema_decay_at(step).is_some();
        let log = &mut |message: &str| observer.log(message);
        self.checkpoints.load_latest(optimizer, identity, &averages_at, &spec.world, log)
    }

    /// The age in seconds of the checkpoint of `step`, if it is the last one that this process has
    /// saved.
    pub fn seconds_since_save(&self, step: u64) -> Option<f64> {
        (step == self.last_saved_step).then(|| self.last_saved_at.elapsed().as_secs_f64())
    }

    /// Continues from the checkpoint of `step` after a rollback.
    pub fn reset_to(&mut self, step: u64) {
        (self.last_saved_step, self.last_saved_at, self.is_due) = (step, Instant::now(), false);
    }
}
