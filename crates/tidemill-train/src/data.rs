//! Where a job's batches come from: [`StoredDatasets`] datasets, or whatever else makes rows of latents and embeddings while the
//! trainer goes on.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tidemill_store::stream::{
    Batch, Datasets, ReadOptions, SkippedRows, Stream, StreamConfig, StreamState, roll_back_to,
};
use tidemill_store::{Dataset, DatasetSpec, Split};

use crate::Error;
use crate::config::TrainConfig;
use crate::parallel::world::World;

/// What a run is trained on.
pub trait TrainingData {
    /// What the rows hold, and which models made it.
    ///
    /// # Errors
    /// If there is nothing to train on.
    fn spec(&self) -> Result<DatasetSpec, Error>;

    /// The empty caption's embedding, in the form that the spec gives for text.
    fn empty_caption(&self) -> &[u8];

    /// What rows it gives and in which order, under a name: a checkpoint goes on only with the same.
    fn identity(&self) -> (&'static str, Value);

    /// Refuses phases that there are no rows for.
    ///
    /// # Errors
    /// If there are none.
    fn check_phases(&self, train: &TrainConfig) -> Result<(), Error>;

    /// Whether rows are encoded in this process, in batches of many sizes.
    fn encodes_in_process(&self) -> bool {
        false
    }

    /// Takes the rows there were when a run began that goes on from this state, before anything else is asked. Gives what to tell
    /// of that, such as that there are rows by now which it does not have.
    fn restore_snapshots(&mut self, _state: &Value) -> Vec<String> {
        Vec::new()
    }

    /// This rank's part of the batches of a phase, from the beginning or from where a state says.
    ///
    /// # Errors
    /// If the state is of something else, or nothing can be read.
    fn open_stream(&self, phase: &Phase<'_>, state: Option<&Value>) -> Result<Box<dyn BatchStream>, Error>;
}

/// A phase of a run, as a rank sees it.
#[derive(Debug)]
pub struct Phase<'a> {
    /// Its index in `[[train.phase]]`.
    pub index: usize,
    /// `[train]`
    pub train: &'a TrainConfig,
    /// The run's seed.
    pub seed: u64,
    /// The ranks, each of which gets its part of every global batch.
    pub world: &'a World,
}

impl Phase<'_> {
    /// The resolution of its images, in pixels.
    pub fn resolution(&self) -> u32 {
        self.train.phase[self.index].resolution
    }

    /// Rows of its global batches.
    pub fn global_batch(&self) -> usize {
        self.train.global_batch_of(self.index)
    }
}

/// An endless sequence of a rank's parts of global batches.
pub trait BatchStream: fmt::Debug {
    /// Whether the next part is there in time; it is still to be taken.
    ///
    /// # Errors
    /// If rows cannot be read or made.
    fn wait_until_ready(&mut self, patience: Duration) -> Result<bool, Error>;

    /// The next part; waits until it is there.
    ///
    /// # Errors
    /// As [`wait_until_ready`](Self::wait_until_ready).
    fn next_batch(&mut self) -> Result<Batch, Error>;

    /// The next part, if it is there and known already; it is still to be taken.
    fn peek(&mut self) -> Option<&Batch> {
        None
    }

    /// Where all ranks stand after the last batch, or at the beginning of another phase after it. All of them ask
    /// together.
    ///
    /// # Errors
    /// If another rank cannot be reached.
    fn state(&self, next_phase: Option<&Phase<'_>>) -> Result<Value, Error>;

    /// Rows that could not be read so far, by why.
    fn unreadable_rows(&self) -> SkippedRows;
}

/// Latent datasets, by the names in the mix.
#[derive(Debug)]
pub struct StoredDatasets(pub Datasets);

impl TrainingData for StoredDatasets {
    /// Datasets that can be mixed have the same models and forms. The buckets are those of all.
    fn spec(&self) -> Result<DatasetSpec, Error> {
        let none = || Error::Dataset("there is no dataset to train on".into());
        let mut spec = self.0.values().next().ok_or_else(none)?.spec().clone();
        spec.latents.extend(self.0.values().flat_map(|dataset| dataset.spec().latents.clone()));
        Ok(spec)
    }

    fn empty_caption(&self) -> &[u8] {
        // The datasets have the same text encoder.
        self.0.values().next().map_or(&[], |dataset| dataset.empty_caption())
    }

    fn identity(&self) -> (&'static str, Value) {
        let digests: BTreeMap<&str, String> =
            self.0.iter().map(|(name, dataset)| (name.as_str(), dataset.digest())).collect();
        ("datasets", json!(digests))
    }

    fn check_phases(&self, train: &TrainConfig) -> Result<(), Error> {
        for (index, phase) in train.phase.iter().enumerate() {
            for name in train.stream_phase(index).mix.keys() {
                let dataset = self.0.get(name);
                let dataset =
                    dataset.ok_or_else(|| Error::Dataset(format!("there is no dataset `{name}`")))?;
                dataset.buckets_with_rows(Split::Train, phase.resolution)?;
            }
        }
        Ok(())
    }

    fn restore_snapshots(&mut self, state: &Value) -> Vec<String> {
        let Ok(state) = StreamState::deserialize(state) else { return Vec::new() };
        let remark = |(now, then): (Dataset, Dataset)| {
            format!(
                "goes on with snapshot {} of {}, as it began: what was preprocessed, left out or removed since shows in snapshot {} \
                 only; to train on that, export these weights and begin a run of another output with them",
                then.snapshot_number(),
                then.location().uri(),
                now.snapshot_number()
            )
        };
        roll_back_to(&mut self.0, &state.datasets).into_iter().map(remark).collect()
    }

    fn open_stream(&self, phase: &Phase<'_>, state: Option<&Value>) -> Result<Box<dyn BatchStream>, Error> {
        let train = phase.train;
        let config = StreamConfig {
            seed: phase.seed,
            window: train.shuffle_window,
            split: Split::Train,
            bucket: None,
            phase: train.stream_phase(phase.index),
        };
        let reading = ReadOptions {
            rank: phase.world.seat()?,
            prefetch: train.stream.prefetch,
            readers: train.stream.readers,
            unreadable: train.stream.unreadable,
            cache: train.stream.open_cache()?,
        };
        let state = state.map(|state| serde_json::from_value::<StreamState>(state.clone())).transpose();
        let state = state.map_err(|e| Error::Dataset(format!("the checkpoint's place in the data: {e}")))?;
        Ok(Box::new(Stream::open(&self.0, config, reading, state)?))
    }
}

impl BatchStream for Stream {
    fn wait_until_ready(&mut self, patience: Duration) -> Result<bool, Error> {
        Ok(Stream::is_ready_within(self, patience)?)
    }

    fn next_batch(&mut self) -> Result<Batch, Error> {
        Ok(Self::next_batch(self)?)
    }

    fn peek(&mut self) -> Option<&Batch> {
        Stream::peek(self)
    }

    /// Every rank knows it: it follows from the number of batches.
    fn state(&self, next_phase: Option<&Phase<'_>>) -> Result<Value, Error> {
        Ok(json!(match next_phase {
            Some(phase) => self.next_phase(phase.train.stream_phase(phase.index)),
            None => Stream::state(self),
        }))
    }

    fn unreadable_rows(&self) -> SkippedRows {
        Stream::skipped_rows(self)
    }
}
