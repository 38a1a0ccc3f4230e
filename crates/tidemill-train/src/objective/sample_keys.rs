//! The keys of a micro-batch's rows, which all random draws depend on.

use super::philox::{Draw, Purpose};

/// Keys of the rows of a micro-batch: everything that their random draws depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleKeys<'a> {
    /// The step, counted from 0 over all phases.
    pub step: u64,
    /// The number of rows in the global batch.
    pub global_batch: usize,
    /// The position of each row in the global batch.
    pub positions: &'a [u32],
    /// 64-bit sample ids.
    pub sample_ids: &'a [u64],
    /// The epoch of each row.
    pub epochs: &'a [u32],
}

impl<'a> SampleKeys<'a> {
    /// The random numbers of each row for one purpose.
    pub(super) fn draws(&self, seed: u64, purpose: Purpose) -> impl Iterator<Item = Draw> + use<'a> {
        let rows = self.sample_ids.iter().zip(self.epochs);
        rows.map(move |(sample, epoch)| Draw::new(seed, *epoch, *sample, purpose))
    }
}
