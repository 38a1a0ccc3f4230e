//! Contains the failures of a stage. A batch that fails is retried in halves, down to single rows.
//! A row that fails alone is quarantined and the others pass, so each row comes out exactly once.

use std::cell::Cell;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use tidemill_data::prepared::text;
use tidemill_data::status::KEPT;
use tidemill_torch::guard;

use crate::engine::stage::Stage;
use crate::engine::stage_utilization::StageMeter;
use crate::error::{Error, Result};

/// A stage that retries failed batches in halves.
pub(crate) struct RetryingStage<'a> {
    name: &'static str,
    stage: &'a dyn Stage,
    meter: &'a StageMeter,
    /// Some rows may cause an error, such as a device out of memory, so errors are retried too.
    /// Otherwise an error stops the run, and only panics are retried.
    retries_errors: bool,
    /// The stage has returned a kept row before.
    has_worked: Cell<bool>,
}

/// Why a batch failed.
enum Failure {
    Panic(String),
    Error(Error),
}

/// The results of a batch that is retried in halves, in the order of its rows.
#[derive(Default)]
struct RetriedParts {
    parts: Vec<RecordBatch>,
    /// Errors of rows that failed alone.
    row_errors: Vec<Error>,
}

impl<'a> RetryingStage<'a> {
    /// Retries panics only: an error of `Prepare` concerns the configuration, such as a missing
    /// column.
    pub fn prepare(stage: &'a dyn Stage, meter: &'a StageMeter) -> Self {
        Self { name: "prepare", stage, meter, retries_errors: false, has_worked: Cell::new(false) }
    }

    /// Retries panics and errors: an error of `Encode` may be due to the batch, such as too little
    /// device memory for all of it.
    pub fn encode(stage: &'a dyn Stage, meter: &'a StageMeter) -> Self {
        Self { name: "encode", stage, meter, retries_errors: true, has_worked: Cell::new(false) }
    }

    /// Runs the stage on the batch.
    ///
    /// # Errors
    /// If the stage fails on every row, so that no single row is the cause.
    pub fn run(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let failure = match self.try_once(batch)? {
            Ok(done) => return Ok(done),
            Err(failure) => failure,
        };
        self.meter.add_retry();
        let mut retried = RetriedParts::default();
        self.retry_in_halves(batch, failure, &mut retried)?;
        let RetriedParts { parts, row_errors } = retried;
        let Some(first) = parts.first() else { return Ok(batch.clone()) };
        let done = concat_batches(&first.schema(), &parts)?;
        let failed_alone = row_errors.len();
        match row_errors.into_iter().next() {
            // If the stage has worked before, a single failed row is itself the cause.
            Some(error) if !any_kept(&done) && (failed_alone > 1 || !self.has_worked.get()) => Err(error),
            _ => Ok(done),
        }
    }

    /// Runs the stage once. The outer error stops the run.
    fn try_once(&self, batch: &RecordBatch) -> Result<std::result::Result<RecordBatch, Failure>> {
        match guard(|| self.stage.run(batch)) {
            Ok(Ok(done)) => {
                self.has_worked.set(self.has_worked.get() || any_kept(&done));
                Ok(Ok(done))
            }
            Ok(Err(error)) if self.retries_errors => Ok(Err(Failure::Error(error))),
            Ok(Err(error)) => Err(error),
            Err(panic) => {
                self.stage.reset_after_panic()?;
                Ok(Err(Failure::Panic(panic.to_string())))
            }
        }
    }

    /// Retries both halves of a failed batch, each again in halves if it fails.
    fn retry_in_halves(
        &self,
        batch: &RecordBatch,
        failure: Failure,
        retried: &mut RetriedParts,
    ) -> Result<()> {
        let rows = batch.num_rows();
        if rows <= 1 {
            retried.parts.push(self.stage.quarantine(batch, &failure.to_reason(self.name))?);
            if let Failure::Error(error) = failure {
                retried.row_errors.push(error);
            }
            return Ok(());
        }
        for (start, end) in [(0, rows / 2), (rows / 2, rows)] {
            let half = batch.slice(start, end - start);
            match self.try_once(&half)? {
                Ok(done) => retried.parts.push(done),
                Err(failure) => self.retry_in_halves(&half, failure, retried)?,
            }
        }
        Ok(())
    }
}

impl Failure {
    /// The reason of a quarantined row: `kind: detail`.
    fn to_reason(&self, stage: &str) -> String {
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
