//! The loss on held-out rows: always of the same ones, with the same noise at the same timesteps, so that it tells one network from
//! another, and not one draw from another.

use std::time::Instant;

use tch::{Tensor, no_grad};
use tidemill_models::Denoiser;
use tidemill_store::DatasetSpec;
use tidemill_store::stream::Batch;
use tidemill_torch::{guard, upload};

use super::Trainer;
use super::step::{PendingStep, micro_batches};
use super::wait_for_batch::wait_for;
use crate::Error;
use crate::data::Phase;
use crate::evaluation::loss_by_timestep::{ByTimestep, SUMS, TENTHS, means};
use crate::evaluation::validation_set::ValidationSet;
use crate::metrics::ValidationMetrics;
use crate::objective::Objective;
use crate::run_spec::Observer;
use crate::trainer::checks::latents_shape;

/// One pass over the held-out rows.
struct Pass<'a> {
    held_out: &'a ValidationSet,
    limit: u64,
    /// After so many steps.
    step: u64,
    phase: Phase<'a>,
    spec: &'a DatasetSpec,
    objective: &'a Objective,
    denoiser: &'a dyn Denoiser,
}

/// What a pass comes to, over all ranks.
struct Loss {
    mean: f64,
    rows: u64,
    by_timestep: Vec<Option<f64>>,
}

impl Trainer {
    /// Takes it after the step that was just taken, if it is due: the metrics of that step then have it.
    pub(super) fn validate(&mut self, phase: usize, observer: &mut dyn Observer) -> Result<(), Error> {
        let step = self.progress.step;
        let due = self.job.train.validation.as_ref().filter(|config| step.is_multiple_of(config.every));
        let (Some(config), Some(held_out)) = (due, &self.job.validation_set) else { return Ok(()) };
        // What the device still has to do for steps is none of its time.
        self.pending.back().map(PendingStep::fetch).transpose()?;
        let started = Instant::now();
        let pass = Pass {
            held_out,
            limit: config.rows,
            step,
            phase: self.phase(phase),
            spec: &self.spec,
            objective: &self.objective,
            denoiser: &*self.job.denoiser,
        };
        let Some(now) = pass.run(observer)? else { return Ok(()) };
        let averaged = match self.optimizer.is_averaging() {
            true => self.optimizer.with_averaged(|| pass.run(observer))??,
            false => None,
        };
        let validation = ValidationMetrics {
            loss: now.mean,
            ema_loss: averaged.map(|loss| loss.mean),
            rows: now.rows,
            seconds: started.elapsed().as_secs_f64(),
            loss_by_timestep: now.by_timestep,
        };
        let averaged =
            validation.ema_loss.map_or(String::new(), |loss| format!(" ({loss:.4} with averaged weights)"));
        let told = format!(
            "validation loss of step {step}: {:.4}{averaged}, {} rows in {:.1} s",
            validation.loss, validation.rows, validation.seconds
        );
        if self.job.world.is_first() {
            observer.log(&told);
        }
        self.window.leave_out(started.elapsed());
        if let Some(pending) = self.pending.back_mut() {
            pending.validation = Some(validation);
        }
        self.flush(observer)
    }
}

impl Pass<'_> {
    /// The mean over the rows, with the weights as they are; none if it is to stop meanwhile. All ranks call it together.
    fn run(&self, observer: &mut dyn Observer) -> Result<Option<Loss>, Error> {
        let (parts, count) = self.held_out.parts(self.phase.resolution(), self.limit)?;
        let sums = guard(|| ByTimestep::new(self.objective.device))?;
        let patience = self.phase.train.stream.stall_seconds;
        for part in &parts {
            let (mut stream, global_batch) = self.held_out.open(part, &self.phase)?;
            for places in part.places.chunks(global_batch) {
                let what = (self.step, "validation");
                let (batch, _) = wait_for(&mut stream, what, patience, self.phase.world, observer)?;
                let Some(mut batch) = batch else { return Ok(None) };
                // What the last batch has beyond the part's rows has a place behind all of them.
                let among_all = |place: u32| places.get(place as usize).copied().unwrap_or(count as u32);
                batch.positions.iter_mut().for_each(|place| *place = among_all(*place));
                self.add(&batch, count, &sums)?;
            }
        }
        let sums = self.phase.world.sum(guard(|| sums.sums())?)?;
        let sums = guard(|| Vec::<f32>::try_from(&sums))?;
        let sums = sums.ok().and_then(|sums| <[f32; SUMS]>::try_from(sums).ok());
        let sums = sums.ok_or_else(|| Error::World("the sums of a validation cannot be read".into()))?;
        let (error, rows): (f32, f32) = (sums[..TENTHS].iter().sum(), sums[TENTHS..].iter().sum());
        Ok(Some(Loss { mean: f64::from(error / rows), rows: rows as u64, by_timestep: means(&sums) }))
    }

    /// Adds this rank's rows of a batch, those behind the first `count` excepted.
    fn add(&self, batch: &Batch, count: u64, sums: &ByTimestep) -> Result<(), Error> {
        let shape = latents_shape(self.spec, batch.bucket)?;
        let size = self.phase.train.micro_batch_of(self.phase.index);
        for rows in micro_batches(batch, shape, 0, (count as usize, size)) {
            let counts = |place: &u32| f32::from(u64::from(*place) < count);
            let counts: Vec<f32> = rows.names.places.iter().map(counts).collect();
            guard(|| {
                no_grad(|| {
                    let shape = self.objective.latents_shape(rows.latents_shape);
                    let draws = self.objective.drawer.held_out().draw(rows.names, shape);
                    let inputs = self.objective.inputs(&self.objective.on_device(rows, &draws));
                    let errors = self.objective.errors(self.denoiser, &inputs);
                    let counts = upload(&Tensor::from_slice(&counts), self.objective.device);
                    sums.add(&(errors * &counts), &counts, &self.objective.tenths(&inputs.timesteps, TENTHS));
                });
            })?;
        }
        Ok(())
    }
}
