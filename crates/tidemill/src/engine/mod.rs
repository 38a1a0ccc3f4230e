//! Engines run the stages over the units of work. A [`Stage`] is one function from record batch to record batch; a
//! [`Sink`] takes a unit's rows and commits them. There is one engine so far: [`local`], the threads of one process.

mod config;
mod cut;
pub mod dataset;
pub mod device;
mod lane;
pub mod local;
mod meter;
pub mod signal;

use arrow::array::RecordBatch;
use tidemill_data::InputUnit;

pub use self::config::{EncodeWorkers, EngineConfig, Kind, PrepareWorkers};
pub use self::local::{Local, Summary};
pub use self::meter::Utilisation;
use crate::error::Result;

/// A function over record batches that keeps one thread busy, such as [`Encode`](crate::Encode) on one device.
pub trait Stage: Send {
    /// Called once, on the thread that will run the stage.
    fn enter(&self) {}

    /// Turns a batch into another with as many rows in the same order. The result depends on the batch alone.
    ///
    /// # Errors
    /// What stops the run. A single bad row does not: it is quarantined.
    fn run(&self, batch: &RecordBatch) -> Result<RecordBatch>;
}

/// Where finished rows go.
pub trait Sink: Sync {
    /// Starts a unit. Nothing of it counts until it is committed; an attempt that is dropped leaves no trace that a
    /// reader sees.
    ///
    /// # Errors
    /// If nothing can be written there.
    fn begin(&self, unit: &InputUnit) -> Result<Box<dyn Attempt>>;
}

/// One attempt at writing a unit.
pub trait Attempt {
    /// Adds rows, in the unit's order.
    ///
    /// # Errors
    /// If they cannot be written.
    fn write(&mut self, batch: &RecordBatch) -> Result<()>;

    /// Makes the unit part of the dataset, unless somebody else has done so meanwhile.
    ///
    /// # Errors
    /// If it cannot be committed.
    fn commit(self: Box<Self>) -> Result<()>;
}
