//! A stage that may panic or fail on a batch. The batch is tried again in halves, down to single rows; a row that
//! fails alone is quarantined and the others pass, so each row comes out exactly once.

use std::cell::Cell;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use tidemill_data::prepared::text;
use tidemill_data::status::KEPT;
use tidemill_torch::guard;

use crate::engine::stage::Stage;
use crate::engine::stage_utilization::Meter;
use crate::error::{Error, Result};

/// A stage whose failures are contained.
pub(crate) struct Guarded<'a> {
    name: &'static str,
    stage: &'a dyn Stage,
    meter: &'a Meter,
    /// Whether an error, as from a device out of memory, may be some rows' fault. Otherwise it stops the run.
    retry_errors: bool,
    /// Whether the stage has worked once.
    worked: Cell<bool>,
}

/// Why a batch failed.
enum Failure {
    Panic(String),
    Error(Error),
}

impl<'a> Guarded<'a> {
    /// An error of `Prepare` concerns the configuration, such as a column that is not there.
    pub fn prepare(stage: &'a dyn Stage, meter: &'a Meter) -> Self {
        Self { name: "prepare", stage, meter, retry_errors: false, worked: Cell::new(false) }
    }

    /// An error of `Encode` may be due to the batch, such as memory that does not suffice for all of it.
    pub fn encode(stage: &'a dyn Stage, meter: &'a Meter) -> Self {
        Self { name: "encode", stage, meter, retry_errors: true, worked: Cell::new(false) }
    }

    /// Runs the stage on the batch.
    ///
    /// # Errors
    /// One that no retry can mend: the stage fails on every row, so no row is to blame.
    pub fn run(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let failure = match self.attempt(batch)? {
            Ok(done) => return Ok(done),
            Err(failure) => failure,
        };
        self.meter.retry();
        let (mut parts, mut errors) = (Vec::new(), Vec::new());
        self.split(batch, failure, &mut parts, &mut errors)?;
        let Some(first) = parts.first() else { return Ok(batch.clone()) };
        let done = concat_batches(&first.schema(), &parts)?;
        let alone = errors.len();
        match errors.into_iter().next() {
            // A single row of a stage that has worked is to blame for itself.
            Some(error) if !any_kept(&done) && (alone > 1 || !self.worked.get()) => Err(error),
            _ => Ok(done),
        }
    }

    /// Runs the stage once. The outer error stops the run.
    fn attempt(&self, batch: &RecordBatch) -> Result<std::result::Result<RecordBatch, Failure>> {
        match guard(|| self.stage.run(batch)) {
            Ok(Ok(done)) => {
                self.worked.set(self.worked.get() || any_kept(&done));
                Ok(Ok(done))
            }
            Ok(Err(error)) if self.retry_errors => Ok(Err(Failure::Error(error))),
            Ok(Err(error)) => Err(error),
            Err(panic) => {
                self.stage.restart()?;
                Ok(Err(Failure::Panic(panic.to_string())))
            }
        }
    }

    /// The results of a batch that failed, in order, and the errors of rows that failed alone.
    fn split(
        &self,
        batch: &RecordBatch,
        failure: Failure,
        parts: &mut Vec<RecordBatch>,
        errors: &mut Vec<Error>,
    ) -> Result<()> {
        let rows = batch.num_rows();
        if rows <= 1 {
            parts.push(self.stage.quarantine(batch, &failure.reason(self.name))?);
            if let Failure::Error(error) = failure {
                errors.push(error);
            }
            return Ok(());
        }
        for (start, end) in [(0, rows / 2), (rows / 2, rows)] {
            let part = batch.slice(start, end - start);
            match self.attempt(&part)? {
                Ok(done) => parts.push(done),
                Err(failure) => self.split(&part, failure, parts, errors)?,
            }
        }
        Ok(())
    }
}

impl Failure {
    /// As the reason of a quarantined row: `kind: detail`.
    fn reason(&self, stage: &str) -> String {
        match self {
            Self::Panic(message) => format!("panic: {stage}: {message}"),
            Self::Error(error) => {
                let (kind, text) = (format!("{stage}: "), error.to_string());
                format!("{kind}{}", text.strip_prefix(&kind).unwrap_or(&text))
            }
        }
    }
}

fn any_kept(batch: &RecordBatch) -> bool {
    text(batch, "status").is_some_and(|status| status.iter().any(|status| status == Some(KEPT)))
}
