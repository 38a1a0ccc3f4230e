//! The position of each row in the order of preference.

use crate::dedup::row::Row;

/// The position of each row in the order of preference, by its sample id.
pub struct Ranks(Vec<(u64, u32)>);

impl Ranks {
    /// The positions of rows that are in order of preference.
    pub fn new(rows: &[Row]) -> Self {
        let mut ranks: Vec<_> = rows.iter().zip(0..).map(|(row, rank)| (row.sample_id, rank)).collect();
        ranks.sort_unstable();
        Self(ranks)
    }

    /// The position of a sample.
    pub fn get(&self, sample_id: u64) -> Option<u32> {
        self.0.binary_search_by_key(&sample_id, |(id, _)| *id).ok().map(|index| self.0[index].1)
    }
}
