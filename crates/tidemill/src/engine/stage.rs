//! What an engine runs: a [`Stage`] turns record batches into record batches.

use arrow::array::RecordBatch;
use tidemill_data::Prepare;

use crate::error::Result;

/// A function over record batches that keeps one thread busy: [`Prepare`], or [`Encode`](crate::Encode) on one device.
pub trait Stage: Send {
    /// Called once on each thread that will run the stage.
    fn enter(&self) {}

    /// Turns a batch into another with as many rows in the same order. The result depends on the batch alone.
    ///
    /// # Errors
    /// What concerns more than one row. A single bad row does not: it is quarantined.
    fn run(&self, batch: &RecordBatch) -> Result<RecordBatch>;

    /// What [`run`](Self::run) gives for rows that are all quarantined for this reason.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    fn quarantine(&self, batch: &RecordBatch, reason: &str) -> Result<RecordBatch>;

    /// Called after a panic in [`run`](Self::run), before it runs again: rebuilds what the panic may have damaged.
    ///
    /// # Errors
    /// If the stage cannot go on.
    fn restart(&self) -> Result<()> {
        Ok(())
    }

    /// Bytes that the stage adds to a row, at most.
    fn row_bytes(&self) -> u64;

    /// Bytes of a batch that come out as they are, beside what the stage adds.
    fn carried_bytes(&self, _batch: &RecordBatch) -> u64 {
        0
    }
}

/// A stage that is somewhere else.
impl<S: Stage + ?Sized> Stage for &mut S {
    fn enter(&self) {
        S::enter(self);
    }

    fn run(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        S::run(self, batch)
    }

    fn quarantine(&self, batch: &RecordBatch, reason: &str) -> Result<RecordBatch> {
        S::quarantine(self, batch, reason)
    }

    fn restart(&self) -> Result<()> {
        S::restart(self)
    }

    fn row_bytes(&self) -> u64 {
        S::row_bytes(self)
    }

    fn carried_bytes(&self, batch: &RecordBatch) -> u64 {
        S::carried_bytes(self, batch)
    }
}

/// No stage at all: rows stay as they are.
pub struct Passing;

impl Stage for Passing {
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
