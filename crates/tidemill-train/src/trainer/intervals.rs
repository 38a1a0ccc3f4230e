//! What happens between steps now and then: checkpoints, pictures, profiles.

use std::path::PathBuf;
use std::time::Instant;

use tidemill_torch::guard;

use super::Trainer;
use super::step::PendingStep;
use crate::Error;
use crate::checkpoint::state_copy::Snapshot;
use crate::metrics::profiler::Profiler;
use crate::run_spec::Observer;

impl Trainer {
    /// Checkpoints and pictures, where they are due. `stand` notes where the data stand.
    pub(super) fn at_intervals(
        &mut self,
        stand: &dyn Fn(&mut Self) -> Result<(), Error>,
        observer: &mut dyn Observer,
    ) -> Result<(), Error> {
        let step = self.progress.step;
        self.owed |= step.is_multiple_of(self.job.checkpoint.every);
        if self.owed {
            // A checkpoint must not hold weights that a loss not yet looked at has spoilt.
            self.flush(observer)?;
            if !self.someone_writes && !self.reopen {
                stand(self)?;
                self.checkpoint()?;
                self.owed = false;
            }
        }
        self.tell_saved(observer)?;
        self.preview(observer)
    }

    /// Pictures, where they are due. The time that they take is none of the steps'.
    fn preview(&mut self, observer: &mut dyn Observer) -> Result<(), Error> {
        let step = self.progress.step;
        let Some(preview) = self.job.preview.as_ref().filter(|preview| preview.due(step)) else {
            return Ok(());
        };
        // Nor is what the device still has to do for steps any of theirs.
        self.pending.back().map(PendingStep::fetch).transpose()?;
        let started = Instant::now();
        let (schedule, denoiser) = (&self.schedule, &*self.job.denoiser);
        let kind = self.objective.kind;
        let phase = self.job.train.phase_at(step.saturating_sub(1)).map_or(0, |(phase, _)| phase);
        let resolution = self.job.train.phase[phase].resolution;
        let draw =
            || guard(|| preview.draw(denoiser, schedule, kind, resolution)).map_err(Error::from).flatten();
        let draw = || self.log.is_some().then(draw);
        let grid = self.optimizer.with_averaged(draw)?;
        if let (Some(grid), Some(log)) = (grid, &mut self.log) {
            // Memory may suffice for steps and not for pictures, which are no reason to end a run.
            observer.log(&match grid.map(|grid| preview.save(&grid, step, log)) {
                Ok(Ok(path)) => format!("pictures of step {step}: {}", path.display()),
                Ok(Err(problem)) => format!("pictures of step {step} cannot be written: {problem}"),
                Err(problem) => format!("pictures of step {step} cannot be drawn: {problem}"),
            });
        }
        self.window.leave_out(started.elapsed());
        Ok(())
    }

    /// Has the state written, unless it has been handed over already.
    pub(super) fn checkpoint(&mut self) -> Result<(), Error> {
        let step = self.progress.step;
        if step > self.saved {
            let started = Instant::now();
            let writers = self.job.checkpoint.writers;
            let snapshot = Snapshot::take(&self.optimizer, &self.progress, &self.job.world, writers)?;
            if !self.job.world.written_by(writers).is_empty() {
                self.saver.hand(snapshot)?;
            }
            (self.saved, self.saved_at) = (step, started);
            self.counts.checkpoint_seconds += started.elapsed().as_secs_f64();
        }
        Ok(())
    }

    /// Has the profiler write what it has, if the run has one and `save` says that it is time. Training goes on if it cannot.
    pub(super) fn save_profile(
        &mut self,
        save: fn(&mut Profiler, u64) -> Result<Option<PathBuf>, Error>,
        observer: &mut dyn Observer,
    ) {
        let step = self.progress.step;
        match self.profiler.as_mut().map(|profiler| save(profiler, step)) {
            Some(Ok(Some(path))) => {
                observer.log(&format!("profile of the steps up to {step}: {}", path.display()));
            }
            Some(Err(problem)) => observer.log(&format!("a profile cannot be written: {problem}")),
            Some(Ok(None)) | None => (),
        }
    }
}
