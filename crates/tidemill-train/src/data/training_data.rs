//! The interface between the trainer and its data: [`TrainingData`] opens one endless
//! [`BatchStream`] per phase. Stored latent datasets implement it, and so does anything else that
//! makes rows while the trainer runs.

use std::fmt;
use std::time::Duration;

use serde_json::Value;
use tidemill_store::DatasetSpec;
use tidemill_store::stream::{Batch, SkippedRows};

use crate::Error;
use crate::config::TrainConfig;
use crate::parallel::world::World;

/// What a run is trained on.
pub trait TrainingData {
    /// The layout of the rows, and the digests of the models that made them.
    ///
    /// # Errors
    /// If there is nothing to train on.
    fn spec(&self) -> Result<DatasetSpec, Error>;

    /// The text embedding (or token ids) of the empty caption, as bytes in the layout that the spec
    /// gives for text.
    fn empty_caption(&self) -> &[u8];

    /// A key and a value that say which rows there are and in which order. A checkpoint is resumed
    /// only with the same.
    fn identity(&self) -> (&'static str, Value);

    /// Checks that every phase has rows.
    ///
    /// # Errors
    /// If a phase has none.
    fn check_phases(&self, train: &TrainConfig) -> Result<(), Error>;

    /// Whether this process encodes the rows itself, in batches of many sizes.
    fn encodes_in_process(&self) -> bool {
        false
    }

    /// Returns to the dataset snapshots that the run started with, as found in a checkpoint's
    /// stream state. The trainer calls this before anything else. Returns messages for the user,
    /// for instance that newer rows are not used.
    fn restore_snapshots(&mut self, _state: &Value) -> Vec<String> {
        Vec::new()
    }

    /// Opens this rank's part of the batches of a phase, from the beginning or from a saved state.
    ///
    /// # Errors
    /// If the state belongs to other data, or the data cannot be read.
    fn open_stream(&self, phase: &Phase<'_>, state: Option<&Value>) -> Result<Box<dyn BatchStream>, Error>;
}

/// A phase of a run, as one rank sees it.
#[derive(Debug)]
pub struct Phase<'a> {
    /// The phase's index in `[[train.phase]]`.
    pub index: usize,
    /// `[train]`
    pub train: &'a TrainConfig,
    /// The run's seed.
    pub seed: u64,
    /// The ranks. Each gets its part of every global batch.
    pub world: &'a World,
}

impl Phase<'_> {
    /// The resolution of the phase's images, in pixels.
    pub fn resolution(&self) -> u32 {
        self.train.phase[self.index].resolution
    }

    /// The number of rows in each of the phase's global batches.
    pub fn global_batch(&self) -> usize {
        self.train.phase_global_batch(self.index)
    }
}

/// An endless sequence of one rank's parts of global batches.
pub trait BatchStream: fmt::Debug {
    /// Waits up to `timeout` for the next batch, and returns whether it is ready. The batch stays
    /// in the stream.
    ///
    /// # Errors
    /// If rows cannot be read or made.
    fn wait_until_ready(&mut self, timeout: Duration) -> Result<bool, Error>;

    /// Takes the next batch, and waits for it as long as that takes.
    ///
    /// # Errors
    /// If rows cannot be read or made.
    fn next_batch(&mut self) -> Result<Batch, Error>;

    /// The next batch, if it is ready. The batch stays in the stream.
    fn peek(&mut self) -> Option<&Batch> {
        None
    }

    /// The position of all ranks after the last batch; with `next_phase`, the position at the start
    /// of that phase. All ranks call this together.
    ///
    /// # Errors
    /// If another rank cannot be reached.
    fn state(&self, next_phase: Option<&Phase<'_>>) -> Result<Value, Error>;

    /// The number of rows that could not be read so far, by reason.
    fn unreadable_rows(&self) -> SkippedRows;
}
