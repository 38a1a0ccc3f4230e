//! Which bucket and dataset each row of a batch comes from. A batch has one bucket, because its
//! images must have one size. Buckets take turns in proportion to their rows. Each bucket has an
//! endless sequence of rows, which continues from one of its batches to the next, across the ends
//! of epochs. Datasets take turns in that sequence.

use std::collections::BTreeMap;

use super::interleave::{Interleave, apportion};
use crate::bucket::Bucket;

/// The rows of a dataset in each bucket.
pub type BucketRows = BTreeMap<Bucket, u64>;

/// The turns of buckets.
#[derive(Debug, Clone)]
pub struct Buckets {
    global_batch: u64,
    sequences_by_bucket: Vec<BucketSequence>,
    turns: Interleave,
}

/// A bucket that batches are made of.
#[derive(Debug, Clone)]
pub struct BucketSequence {
    /// The bucket.
    pub bucket: Bucket,
    /// Indices of the datasets that have rows in the bucket.
    pub datasets: Vec<usize>,
    /// The turns of those datasets.
    pub mix: Interleave,
}

impl Buckets {
    /// Makes the turns of datasets, each with its weight and its rows. A dataset's weight is
    /// divided among buckets in proportion to its rows. Returns `None` if there are no rows, or if
    /// the weights add up to more than 2^62.
    pub fn new(global_batch: u64, datasets: &[(u64, BucketRows)]) -> Option<Self> {
        let mut weights: BTreeMap<Bucket, Vec<(usize, u64)>> = BTreeMap::new();
        for (dataset, (weight, rows)) in datasets.iter().enumerate() {
            let parts = rows.keys().zip(apportion(*weight, rows.values().copied()));
            for (bucket, part) in parts.filter(|(_, part)| *part > 0) {
                weights.entry(*bucket).or_default().push((dataset, part));
            }
        }
        let bucket_sequence = |(bucket, parts): (Bucket, Vec<(usize, u64)>)| {
            let (datasets, weights): (Vec<usize>, Vec<u64>) = parts.into_iter().unzip();
            Some(BucketSequence { bucket, datasets, mix: Interleave::new(&weights)? })
        };
        let sequences_by_bucket: Vec<BucketSequence> =
            weights.into_iter().map(bucket_sequence).collect::<Option<_>>()?;
        let turns: Vec<u64> =
            sequences_by_bucket.iter().map(|bucket_sequence| bucket_sequence.mix.period()).collect();
        Some(Self { global_batch, turns: Interleave::new(&turns)?, sequences_by_bucket })
    }

    /// The buckets, sorted.
    pub fn sequences_by_bucket(&self) -> &[BucketSequence] {
        &self.sequences_by_bucket
    }

    /// Rows of a global batch.
    pub fn global_batch(&self) -> u64 {
        self.global_batch
    }

    /// The index of the bucket of batch `number`, and how many rows that bucket has given before.
    pub fn batch(&self, number: u64) -> (usize, u64) {
        let (bucket, turn) = self.turns.at(number);
        (bucket, turn * self.global_batch)
    }

    /// How many rows of each bucket and of each of its datasets are in the first `batches` batches.
    pub fn counts(&self, batches: u64) -> Vec<Vec<u64>> {
        let turns = self.turns.counts(batches).into_iter().zip(&self.sequences_by_bucket);
        turns.map(|(turns, bucket_sequence)| bucket_sequence.mix.counts(turns * self.global_batch)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_take_turns_by_their_rows() {
        let names = ["64", "64-128x32", "64-32x128"].map(|name| name.parse::<Bucket>().unwrap());
        let rows = |rows: [u64; 3]| -> BucketRows { names.into_iter().zip(rows).collect() };
        // The first dataset comes twice per epoch: 20 + 40 + 0 rows. The second has 40 + 0 + 0
        // rows.
        let buckets = Buckets::new(4, &[(60, rows([10, 20, 0])), (40, rows([40, 0, 0]))]).unwrap();
        let sequences_by_bucket: Vec<_> =
            buckets.sequences_by_bucket().iter().map(|m| (m.bucket, m.datasets.clone())).collect();
        assert_eq!(sequences_by_bucket, [(names[0], vec![0, 1]), (names[1], vec![0])], "one has no rows");
        let mut seen = vec![vec![0; 2], vec![0; 1]];
        for number in 0..100 {
            let (bucket, first) = buckets.batch(number);
            assert_eq!(first, seen[bucket].iter().sum::<u64>(), "no row of a bucket is left out");
            for row in first..first + 4 {
                let (dataset, before) = buckets.sequences_by_bucket()[bucket].mix.at(row);
                assert_eq!(before, seen[bucket][dataset], "nor one of a dataset");
                seen[bucket][dataset] += 1;
            }
            assert_eq!(buckets.counts(number + 1), seen);
        }
        assert_eq!(seen, [vec![80, 160], vec![160]]);
        assert!(Buckets::new(4, &[(5, rows([0; 3]))]).is_none());
    }
}
