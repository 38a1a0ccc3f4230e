//! The position of each row in the order of preference.

use crate::dedup::row::Row;

/// The position of some rows in the order of preference, by their sample ids.
pub struct Ranks(Vec<(u64, u32)>);

impl Ranks {
    /// The positions of the rows with these indices, among rows in order of preference.
    pub fn new(rows: &[Row], indices: &[usize]) -> Self {
        let mut ranks: Vec<_> = indices.iter().map(|index| (rows[*index].sample_id, *index as u32)).collect();
        ranks.sort_unstable();
        Self(ranks)
    }

    /// The position of a sample, if it is one of these.
    pub fn get(&self, sample_id: u64) -> Option<u32> {
        self.0.binary_search_by_key(&sample_id, |(id, _)| *id).ok().map(|index| self.0[index].1)
    }
}
