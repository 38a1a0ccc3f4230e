//! The validation loss: always on the same rows, with the same noise at the same timesteps, so that
//! two values differ because the networks differ, and not because other noise was drawn.

use std::time::Instant;

use tch::{Tensor, no_grad};
use tidemill_models::Denoiser;
use tidemill_store::DatasetSpec;
use tidemill_store::stream::Batch;
use tidemill_torch::{guard, upload};

use crate::Error;
use crate::data::Phase;
use crate::data::latents_layout::latents_shape;
use crate::data::micro_batches::{BatchSizes, micro_batches};
use crate::data::wait_for_batch::{BatchRequest, wait_for_batch};
use crate::evaluation::loss_by_timestep::{FLAT_SUMS, LossByTimestep, TENTHS, mean_by_tenth};
use crate::evaluation::validation_set::ValidationSet;
use crate::metrics::ValidationMetrics;
use crate::objective::denoising::Objective;
use crate::observer::Observer;
use crate::optimizer::Optimizer;

/// Computes the validation loss after a step.
pub(crate) struct Validation<'a> {
    pub rows: &'a ValidationSet,
    /// The most rows to use.
    pub max_rows: u64,
    /// Optimizer steps done.
    pub step: u64,
    pub phase: Phase<'a>,
    pub dataset: &'a DatasetSpec,
    pub objective: &'a Objective,
    pub denoiser: &'a dyn Denoiser,
}

/// The loss over all ranks with one set of weights.
struct MeanLoss {
    mean: f64,
    rows: u64,
    by_timestep: Vec<Option<f64>>,
}

impl Validation<'_> {
    /// Computes the loss with the current weights and, once averaging has started, with the
    /// averaged ones. Returns none if the run is to stop meanwhile. All ranks call this together.
    ///
    /// # Errors
    /// If rows cannot be read, libtorch fails, or another rank cannot be reached.
    pub fn run(
        &self,
        optimizer: &Optimizer,
        observer: &mut dyn Observer,
    ) -> Result<Option<ValidationMetrics>, Error> {
        let started = Instant::now();
        let Some(current) = optimizer.with_whole_weights(|| self.mean_loss(observer))?? else {
            return Ok(None);
        };
        let averaged = match optimizer.has_ema() {
            true => optimizer.with_ema_weights(|| self.mean_loss(observer))??,
            false => None,
        };
        Ok(Some(ValidationMetrics {
            loss: current.mean,
            ema_loss: averaged.map(|loss| loss.mean),
            rows: current.rows,
            seconds: started.elapsed().as_secs_f64(),
            loss_by_timestep: current.by_timestep,
        }))
    }

    /// The mean loss over the rows with the weights as they are; none if the run is to stop
    /// meanwhile.
    fn mean_loss(&self, observer: &mut dyn Observer) -> Result<Option<MeanLoss>, Error> {
        let (parts, count) = self.rows.parts(self.phase.resolution(), self.max_rows)?;
        let sums = guard(|| LossByTimestep::new(self.objective.device))?;
        let stall_seconds = self.phase.train.stream.stall_seconds;
        let request = BatchRequest { step: self.step, purpose: "validation", stall_seconds };
        for part in &parts {
            let (mut stream, global_batch) = self.rows.open_stream(part, &self.phase)?;
            for positions in part.positions.chunks(global_batch) {
                let (batch, _) = wait_for_batch(&mut stream, request, self.phase.world, observer)?;
                let Some(mut batch) = batch else { return Ok(None) };
                // The last batch may have rows beyond the part's. They get a position after all
                // rows.
                let position_in_all =
                    |position: u32| positions.get(position as usize).copied().unwrap_or(count as u32);
                batch.positions.iter_mut().for_each(|position| *position = position_in_all(*position));
                self.add_batch(&batch, count, &sums)?;
            }
        }
        let sums = self.phase.world.all_reduce_sum(guard(|| sums.to_flat_sums())?)?;
        let sums = guard(|| Vec::<f32>::try_from(&sums))?;
        let sums = sums.ok().and_then(|sums| <[f32; FLAT_SUMS]>::try_from(sums).ok());
        let sums = sums.ok_or_else(|| Error::World("the sums of a validation cannot be read".into()))?;
        let (error, rows): (f32, f32) = (sums[..TENTHS].iter().sum(), sums[TENTHS..].iter().sum());
        let by_timestep = mean_by_tenth(&sums);
        Ok(Some(MeanLoss { mean: f64::from(error / rows), rows: rows as u64, by_timestep }))
    }

    /// Adds this rank's rows of a batch to the sums, except rows whose position is `count` or
    /// higher.
    fn add_batch(&self, batch: &Batch, count: u64, sums: &LossByTimestep) -> Result<(), Error> {
        let shape = latents_shape(self.dataset, batch.bucket)?;
        let micro = self.phase.train.phase_micro_batch(self.phase.index);
        for rows in micro_batches(batch, shape, 0, BatchSizes { global: count as usize, micro }) {
            let is_counted = |position: &u32| f32::from(u64::from(*position) < count);
            let counts: Vec<f32> = rows.keys.positions.iter().map(is_counted).collect();
            guard(|| {
                no_grad(|| {
                    let shape = self.objective.latents_shape(rows.latents_shape);
                    let draws = self.objective.drawer.for_validation().draw(rows.keys, shape);
                    let rows = self.objective.upload(rows, &draws);
                    let inputs = self.objective.prepare_inputs(self.denoiser, &rows);
                    let errors = self.objective.compute_errors(self.denoiser, &inputs);
                    let counts = upload(&Tensor::from_slice(&counts), self.objective.device);
                    let tenths = self.objective.timestep_bins(&inputs.timesteps, TENTHS);
                    sums.add(&(errors * &counts), &counts, &tenths);
                });
            })?;
        }
        Ok(())
    }
}

/// The message to the user about a validation.
pub(crate) fn validation_message(step: u64, validation: &ValidationMetrics) -> String {
    let averaged =
        validation.ema_loss.map_or(String::new(), |loss| format!(" ({loss:.4} with averaged weights)"));
    format!(
        "validation loss of step {step}: {:.4}{averaged}, {} rows in {:.1} s",
        validation.loss, validation.rows, validation.seconds
    )
}
