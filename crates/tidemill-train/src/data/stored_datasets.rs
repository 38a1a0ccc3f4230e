//! Latent datasets as training data.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tidemill_store::stream::{
    Batch, Datasets, ReadOptions, SkippedRows, Stream, StreamConfig, StreamState, roll_back_to,
};
use tidemill_store::{Dataset, DatasetSpec, Split};

use crate::Error;
use crate::config::TrainConfig;
use crate::data::training_data::{BatchStream, Phase, TrainingData};

/// Latent datasets, by their names in the mix.
#[derive(Debug)]
pub struct StoredDatasets(pub Datasets);

impl TrainingData for StoredDatasets {
    /// The spec of the first dataset, with the buckets of all. Datasets that can be mixed have the
    /// same models and layouts.
    fn spec(&self) -> Result<DatasetSpec, Error> {
        let no_dataset = || Error::Dataset("there is no dataset to train on".into());
        let mut spec = self.0.values().next().ok_or_else(no_dataset)?.spec().clone();
        spec.latents.extend(self.0.values().flat_map(|dataset| dataset.spec().latents.clone()));
        Ok(spec)
    }

    fn empty_caption(&self) -> &[u8] {
        // All datasets have the same text encoder.
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
        let describe = |(newest, restored): (Dataset, Dataset)| {
            format!(
                "the run resumes with snapshot {} of {}, as it started. Rows that were added, filtered \
                 out or removed since then are in snapshot {} only; to train on that snapshot, export \
                 these weights and start a run with another output from them",
                restored.snapshot_number(),
                restored.location().uri(),
                newest.snapshot_number()
            )
        };
        roll_back_to(&mut self.0, &state.datasets).into_iter().map(describe).collect()
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
            rank: phase.world.stream_rank()?,
            prefetch: train.stream.prefetch,
            readers: train.stream.readers,
            unreadable: train.stream.unreadable,
            cache: train.stream.open_cache()?,
        };
        let state = state.map(|state| serde_json::from_value::<StreamState>(state.clone())).transpose();
        let state =
            state.map_err(|e| Error::Dataset(format!("the checkpoint's position in the data: {e}")))?;
        Ok(Box::new(Stream::open(&self.0, config, reading, state)?))
    }
}

impl BatchStream for Stream {
    fn wait_until_ready(&mut self, timeout: Duration) -> Result<bool, Error> {
        Ok(Stream::is_ready_within(self, timeout)?)
    }

    fn next_batch(&mut self) -> Result<Batch, Error> {
        Ok(Stream::next_batch(self)?)
    }

    fn peek(&mut self) -> Option<&Batch> {
        Stream::peek(self)
    }

    /// Every rank knows the state by itself, because it follows from the number of batches.
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
