//! The validation set: rows that are never trained on.

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

/// Latent datasets, and the split of them that is the validation set.
#[derive(Debug)]
pub struct ValidationSet {
    /// The datasets, by their names.
    pub datasets: Datasets,
    /// [`Split::Validation`] of datasets that are trained on, [`Split::Train`] of a dataset that
    /// serves validation only.
    pub split: Split,
}

/// The rows of one dataset and bucket that take part in a validation.
pub(crate) struct ValidationPart {
    dataset: String,
    bucket: Bucket,
    /// The position of each row, in order, among the rows of all parts.
    pub positions: Vec<u32>,
}

impl ValidationSet {
    /// Checks that each phase has validation rows, and that the rows are like those of the dataset
    /// `trained_on`.
    ///
    /// # Errors
    /// [`Error::Dataset`] if not.
    pub(crate) fn check(&self, train: &TrainConfig, trained_on: &DatasetSpec) -> Result<(), Error> {
        for (name, dataset) in &self.datasets {
            if let Some(problem) = find_mismatch(trained_on, dataset.spec()) {
                return Err(Error::Dataset(format!(
                    "the validation rows of `{name}` are not like the rows of training: {problem}; \
                     prepare them with the same models and settings"
                )));
            }
        }
        train.phase.iter().try_for_each(|phase| self.check_buckets(phase.resolution, trained_on))
    }

    /// Returns the datasets to the snapshots that the run started with, so that each validation has
    /// the same rows.
    pub(crate) fn restore_snapshots(&mut self, snapshots: &BTreeMap<String, SnapshotId>) {
        let _ = roll_back_to(&mut self.datasets, snapshots);
    }

    /// The datasets' snapshots, for a checkpoint.
    pub(crate) fn snapshots(&self) -> BTreeMap<String, SnapshotId> {
        snapshot_ids(&self.datasets)
    }

    /// Checks that training has all buckets of the validation rows.
    fn check_buckets(&self, resolution: u32, trained_on: &DatasetSpec) -> Result<(), Error> {
        let is_untrained = |(_, bucket, _): &(&str, Bucket, u64)| !trained_on.latents.contains_key(bucket);
        match self.rows_by_bucket(resolution)?.into_iter().find(is_untrained) {
            None => Ok(()),
            Some((name, bucket, _)) => Err(Error::Dataset(format!(
                "`{name}` has validation rows of {bucket}, but the training rows have no such bucket; \
                 prepare both with the same prepare.crop and prepare.resolution"
            ))),
        }
    }

    /// The parts that a validation at a resolution consists of, and their number of rows: `limit`,
    /// or all rows if there are fewer. Each dataset and bucket has its share of the rows and of the
    /// timesteps.
    ///
    /// # Errors
    /// If there are no rows at this resolution.
    pub(crate) fn parts(&self, resolution: u32, limit: u64) -> Result<(Vec<ValidationPart>, u64), Error> {
        let rows = self.rows_by_bucket(resolution)?;
        let count = rows.iter().map(|(.., rows)| rows).sum::<u64>().min(limit);
        let shares = apportion(count, rows.iter().map(|(.., rows)| *rows));
        let mut parts: Vec<ValidationPart> = rows
            .into_iter()
            .map(|(name, bucket, _)| ValidationPart {
                dataset: name.to_owned(),
                bucket,
                positions: Vec::new(),
            })
            .collect();
        if let Some(interleave) = Interleave::new(&shares) {
            (0..count).for_each(|row| parts[interleave.at(row).0].positions.push(row as u32));
        }
        parts.retain(|part| !part.positions.is_empty());
        Ok((parts, count))
    }

    /// Opens the rows of a part in an order that never changes, and returns the size of the global
    /// batches. After the part's rows, other rows follow.
    ///
    /// # Errors
    /// If the dataset cannot be read.
    pub(crate) fn open_stream(
        &self,
        part: &ValidationPart,
        phase: &Phase<'_>,
    ) -> Result<(Stream, usize), Error> {
        let global_batch = part.positions.len().min(phase.global_batch());
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
            rank: phase.world.stream_rank()?,
            prefetch: phase.train.stream.prefetch,
            readers: phase.train.stream.readers,
            unreadable: phase.train.stream.unreadable,
            cache: phase.train.stream.open_cache()?,
        };
        Ok((Stream::open(&self.datasets, config, reading, None)?, global_batch))
    }

    /// The number of rows of each dataset and bucket that has any at this resolution.
    fn rows_by_bucket(&self, resolution: u32) -> Result<Vec<(&str, Bucket, u64)>, Error> {
        let (mut rows, mut first_error) = (Vec::new(), None);
        for (name, dataset) in &self.datasets {
            match dataset.buckets_with_rows(self.split, resolution) {
                Ok(buckets) => rows.extend(
                    buckets
                        .into_iter()
                        .map(|bucket| (name.as_str(), bucket, dataset.num_rows(self.split, bucket))),
                ),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        match first_error {
            Some(error) if rows.is_empty() => Err(error.into()),
            _ => Ok(rows),
        }
    }
}
