//! What an engine runs: a [`Stage`] turns record batches into record batches.

use arrow::array::RecordBatch;
use tidemill_data::Prepare;

use crate::error::Result;

/// A function over record batches that keeps one thread busy: [`Prepare`], or
/// [`Encode`](crate::Encode) on one device.
pub trait Stage: Send {
    /// Sets up the calling thread. Called once on each thread that will run the stage.
    fn init_thread(&self) {}

    /// Turns a batch into another with the same number of rows in the same order. The result
    /// depends on the batch alone.
    ///
    /// # Errors
    /// Errors that concern more than one row. A single bad row is quarantined instead.
    fn run(&self, batch: &RecordBatch) -> Result<RecordBatch>;

    /// Returns what [`run`](Self::run) returns when it quarantines every row for this reason.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    fn quarantine(&self, batch: &RecordBatch, reason: &str) -> Result<RecordBatch>;

    /// Rebuilds what a panic in [`run`](Self::run) may have damaged. Called after each panic,
    /// before the stage runs again.
    ///
    /// # Errors
    /// If the stage cannot be used any more.
    fn reset_after_panic(&self) -> Result<()> {
        Ok(())
    }

    /// The most bytes that the stage adds to a row.
    fn row_bytes(&self) -> u64;

    /// Bytes of a batch that the stage passes through unchanged, besides what it adds.
    fn carried_bytes(&self, _batch: &RecordBatch) -> u64 {
        0
    }
}

/// A borrowed stage is a stage, so that one set of encoders can serve several runs of an engine.
impl<S: Stage + ?Sized> Stage for &mut S {
    fn init_thread(&self) {
        S::init_thread(self);
    }

    fn run(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        S::run(self, batch)
    }

    fn quarantine(&self, batch: &RecordBatch, reason: &str) -> Result<RecordBatch> {
        S::quarantine(self, batch, reason)
    }

    fn reset_after_panic(&self) -> Result<()> {
        S::reset_after_panic(self)
    }

    fn row_bytes(&self) -> u64 {
        S::row_bytes(self)
    }

    fn carried_bytes(&self, batch: &RecordBatch) -> u64 {
        S::carried_bytes(self, batch)
    }
}

/// A stage that returns rows unchanged, for runs whose engine only prepares.
pub struct PassThrough;

impl Stage for PassThrough {
    fn run(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        Ok(batch.clone())
    }

    fn quarantine(&self, batch: &RecordBatch, _reason: &str) -> Result<RecordBatch> {
        Ok(batch.clone())
    }

    fn row_bytes(&self) -> u64 {
        0
    }
}

impl Stage for Prepare {
    fn run(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        Ok(Prepare::run(self, batch)?)
    }

    fn quarantine(&self, batch: &RecordBatch, reason: &str) -> Result<RecordBatch> {
        Ok(Prepare::quarantine(self, batch, reason)?)
    }

    fn row_bytes(&self) -> u64 {
        Prepare::row_bytes(self)
    }

    fn carried_bytes(&self, batch: &RecordBatch) -> u64 {
        Prepare::carried_bytes(self, batch)
    }
}
