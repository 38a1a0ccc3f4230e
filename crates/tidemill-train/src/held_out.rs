//! Rows that are never trained on.

use std::collections::BTreeMap;

use tidemill_store::stream::{self, Amount, Datasets, Reading, Stream, StreamConfig, difference};
use tidemill_store::{Dataset, DatasetSpec, Split};

use crate::Error;
use crate::config::TrainConfig;
use crate::data::Phase;

/// Latent datasets, and which of their rows are held out.
#[derive(Debug)]
pub struct HeldOut {
    /// The datasets, by their names.
    pub datasets: Datasets,
    /// `Validation` of datasets that are trained on, `Train` of one that is there for nothing else.
    pub split: Split,
}

impl HeldOut {
    /// Refuses phases that nothing is held out for, and rows that are not what `trained_on` are.
    pub(crate) fn check(&self, train: &TrainConfig, trained_on: &DatasetSpec) -> Result<(), Error> {
        for (name, dataset) in &self.datasets {
            if let Some(problem) = difference(trained_on, dataset.spec()) {
                return Err(Error::Dataset(format!(
                    "the rows held out in `{name}` are not like those of training: {problem}; prepare them with the same models and \
                     settings"
                )));
            }
        }
        train.phase.iter().try_for_each(|phase| self.check_buckets(phase.resolution, trained_on))
    }

    /// Refuses rows in buckets that training has none of.
    fn check_buckets(&self, resolution: u32, trained_on: &DatasetSpec) -> Result<(), Error> {
        for name in self.rows(resolution)?.into_keys() {
            let buckets = self.datasets[name].buckets_with_rows(self.split, resolution)?;
            if let Some(bucket) = buckets.into_iter().find(|bucket| !trained_on.latents.contains_key(bucket))
            {
                return Err(Error::Dataset(format!(
                    "`{name}` has held-out rows of {bucket}, which training has none of: prepare both with the same \
                     prepare.crop and prepare.resolution"
                )));
            }
        }
        Ok(())
    }

    /// The first `limit` rows in an order that never changes, as batches no larger than the phase's; and how many
    /// rows those are. Behind them, others follow.
    pub(crate) fn open(&self, phase: &Phase<'_>, limit: u64) -> Result<(Stream, u64), Error> {
        let rows = self.rows(phase.resolution())?;
        let count = rows.values().sum::<u64>().min(limit);
        let mix = rows.into_keys().map(|name| (name.to_owned(), Amount::Repeat(1.0)));
        let config = StreamConfig {
            seed: phase.seed,
            window: phase.train.shuffle_window,
            split: self.split,
            phase: stream::Phase {
                resolution: phase.resolution(),
                global_batch: count.min(phase.global_batch() as u64),
                mix: mix.collect(),
            },
        };
        let reading = Reading {
            seat: phase.world.seat()?,
            prefetch: phase.train.stream.prefetch,
            readers: phase.train.stream.readers,
            unreadable: phase.train.stream.unreadable,
            cache: phase.train.stream.open_cache()?,
        };
        Ok((Stream::open(&self.datasets, config, reading, None)?, count))
    }

    /// The datasets with rows at a resolution, and how many those are.
    fn rows(&self, resolution: u32) -> Result<BTreeMap<&str, u64>, Error> {
        let rows_of = |dataset: &Dataset| {
            let buckets = dataset.buckets_with_rows(self.split, resolution)?;
            Ok(buckets.into_iter().map(|bucket| dataset.rows(self.split, bucket)).sum())
        };
        let all = self.datasets.iter().map(|(name, dataset)| (name.as_str(), rows_of(dataset)));
        let (with, without): (Vec<_>, Vec<_>) = all.partition(|(_, rows)| rows.is_ok());
        match without.into_iter().next() {
            Some((_, Err(error))) if with.is_empty() => Err(error),
            _ => Ok(with.into_iter().filter_map(|(name, rows)| Some((name, rows.ok()?))).collect()),
        }
    }
}
