//! Rows that are never trained on.

use std::collections::BTreeMap;

use tidemill_store::stream::order::interleave::{Interleave, apportion};
use tidemill_store::stream::{
    self, Datasets, MixAmount, ReadOptions, SnapshotId, Stream, StreamConfig, find_mismatch, roll_back_to,
    snapshot_ids,
};
use tidemill_store::{Bucket, DatasetSpec, Split};

use crate::Error;
use crate::config::TrainConfig;
use crate::data::Phase;

/// Latent datasets, and which of their rows are held out.
#[derive(Debug)]
pub struct ValidationSet {
    /// The datasets, by their names.
    pub datasets: Datasets,
    /// `Validation` of datasets that are trained on, `Train` of one that is there for nothing else.
    pub split: Split,
}

impl ValidationSet {
    /// Refuses phases that nothing is held out for, and rows that are not what `trained_on` are.
    pub(crate) fn check(&self, train: &TrainConfig, trained_on: &DatasetSpec) -> Result<(), Error> {
        for (name, dataset) in &self.datasets {
            if let Some(problem) = find_mismatch(trained_on, dataset.spec()) {
                return Err(Error::Dataset(format!(
                    "the rows held out in `{name}` are not like those of training: {problem}; prepare them with the same models and \
                     settings"
                )));
            }
        }
        train.phase.iter().try_for_each(|phase| self.check_buckets(phase.resolution, trained_on))
    }

    /// Puts the datasets back to what they were when the run began, so that it is always the same rows.
    pub(crate) fn go_on(&mut self, snapshots: &BTreeMap<String, SnapshotId>) {
        let _ = roll_back_to(&mut self.datasets, snapshots);
    }

    /// Which rows there are: for a checkpoint.
    pub(crate) fn snapshots(&self) -> BTreeMap<String, SnapshotId> {
        snapshot_ids(&self.datasets)
    }

    /// Refuses rows in buckets that training has none of.
    fn check_buckets(&self, resolution: u32, trained_on: &DatasetSpec) -> Result<(), Error> {
        let unlike = |(_, bucket, _): &(&str, Bucket, u64)| !trained_on.latents.contains_key(bucket);
        match self.rows(resolution)?.into_iter().find(unlike) {
            None => Ok(()),
            Some((name, bucket, _)) => Err(Error::Dataset(format!(
                "`{name}` has held-out rows of {bucket}, which training has none of: prepare both with the same \
                 prepare.crop and prepare.resolution"
            ))),
        }
    }

    /// The rows that a loss at a resolution is taken of: `limit` in all, or as many as there are. Each dataset and bucket has its
    /// share of them and of the timesteps.
    pub(crate) fn parts(&self, resolution: u32, limit: u64) -> Result<(Vec<Part>, u64), Error> {
        let rows = self.rows(resolution)?;
        let count = rows.iter().map(|(.., rows)| rows).sum::<u64>().min(limit);
        let shares = apportion(count, rows.iter().map(|(.., rows)| *rows));
        let mut parts: Vec<Part> = rows
            .into_iter()
            .map(|(name, bucket, _)| Part { dataset: name.to_owned(), bucket, places: Vec::new() })
            .collect();
        if let Some(turns) = Interleave::new(&shares) {
            (0..count).for_each(|turn| parts[turns.at(turn).0].places.push(turn as u32));
        }
        parts.retain(|part| !part.places.is_empty());
        Ok((parts, count))
    }

    /// A part's rows in an order that never changes, in batches of the size that is given with them. Behind them, others follow.
    pub(crate) fn open(&self, part: &Part, phase: &Phase<'_>) -> Result<(Stream, usize), Error> {
        let global_batch = part.places.len().min(phase.global_batch());
        let config = StreamConfig {
            seed: phase.seed,
            window: phase.train.shuffle_window,
            split: self.split,
            bucket: Some(part.bucket),
            phase: stream::Phase {
                resolution: phase.resolution(),
                global_batch: global_batch as u64,
                mix: [(part.dataset.clone(), MixAmount::Repeat(1.0))].into(),
            },
        };
        let reading = ReadOptions {
            rank: phase.world.seat()?,
            prefetch: phase.train.stream.prefetch,
            readers: phase.train.stream.readers,
            unreadable: phase.train.stream.unreadable,
            cache: phase.train.stream.open_cache()?,
        };
        Ok((Stream::open(&self.datasets, config, reading, None)?, global_batch))
    }

    /// How many rows each dataset and bucket has at a resolution, where there are any.
    fn rows(&self, resolution: u32) -> Result<Vec<(&str, Bucket, u64)>, Error> {
        let (mut rows, mut without) = (Vec::new(), None);
        for (name, dataset) in &self.datasets {
            match dataset.buckets_with_rows(self.split, resolution) {
                Ok(buckets) => rows.extend(
                    buckets
                        .into_iter()
                        .map(|bucket| (name.as_str(), bucket, dataset.num_rows(self.split, bucket))),
                ),
                Err(error) => without = without.or(Some(error)),
            }
        }
        match without {
            Some(error) if rows.is_empty() => Err(error.into()),
            _ => Ok(rows),
        }
    }
}

/// Rows of a dataset and bucket that a loss is taken of.
pub(crate) struct Part {
    dataset: String,
    bucket: Bucket,
    /// The place of each of the rows, in their order, among those of all parts.
    pub places: Vec<u32>,
}
