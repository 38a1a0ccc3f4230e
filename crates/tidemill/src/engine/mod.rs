//! Engines run the stages over the units of work. A [`Stage`] is one function from record batch to record batch; a
//! [`Sink`] takes a unit's rows and commits them. [`ray`] is the engine for a cluster, whose workers do units by
//! [`remote`]; [`local`] is the threads of one process:
//!
//! ```text
//!  units ─► readers ─► feed ─► pool of workers ─► cut ─► encode ─► write ─► commit
//!           read.rs    lane.rs       pool.rs      lane.rs  lane.rs  write.rs
//!           n          1 a lane      min..max     1 a lane 1 a lane 1 a lane
//!             └─ memory ─┘  └──────────── memory ─────────────────────┘  budget.rs
//! ```
//!
//! Readers take units in order and read them ahead; each lane, one per encoder, takes the next unit and sees it
//! through. It feeds small pieces to the pool that all lanes share, takes the results in the order in which the rows
//! were read, and cuts encode batches from them (cut.rs). The bytes of a unit therefore depend on its rows alone.
//! All queues are bounded, in number or in bytes, so memory does not grow with the dataset and a slow stage slows those
//! before it. A batch that fails is tried again in parts (retry.rs). monitor.rs sizes the pool and tells what goes on.

mod budget;
mod config;
mod cut;
pub mod dataset;
pub mod device;
mod encoder;
pub mod incremental;
mod lane;
pub mod local;
pub mod machine;
pub mod maker;
mod meter;
mod monitor;
mod pool;
pub mod ray;
mod read;
pub mod remote;
mod retry;
pub mod signal;
mod write;

use std::time::Duration;

use arrow::array::RecordBatch;
use tidemill_data::{InputUnit, Prepare};

pub use self::budget::Memory;
pub use self::config::{
    EncodeWorkers, EngineConfig, Kind, PrepareWorkers, RayConfig, ReadWorkers, TrainWorkers, Workers,
};
pub use self::encoder::{Encoded, Encoder};
pub use self::local::{Local, Summary};
pub use self::meter::Utilisation;
pub use self::write::{JUDGED_FROM, judge};
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

/// Where finished rows go.
pub trait Sink: Sync {
    /// Whether there is room for a unit, or will be within `patience`. Asked before anything of it is prepared: rows that are
    /// under way hold memory that others may need to make the room.
    fn has_room(&self, _unit: &InputUnit, _patience: Duration) -> bool {
        true
    }

    /// Starts a unit. Nothing of it counts until it is committed; an attempt that is dropped leaves no trace that a
    /// reader sees.
    ///
    /// # Errors
    /// If nothing can be written there.
    fn begin(&self, unit: &InputUnit) -> Result<Box<dyn Attempt>>;

    /// Told at the end of a run, however it ends, what each stage did.
    fn ended(&self, _stages: &[Utilisation]) {}
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
