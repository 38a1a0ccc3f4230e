//! Decides which rows are duplicates, given the hashes of all rows.

use std::collections::HashMap;

use serde::Serialize;

use crate::dedup::config::DedupConfig;
use crate::dedup::decide;
use crate::dedup::near_duplicates::find_near_duplicates;
use crate::dedup::row::Row;
use crate::dedup::similar::{Embeddings, SimilarSearch};
use crate::error::Result;

/// Bytes of embeddings that are compared at a time.
const SIMILAR_MEMORY: u64 = 1 << 30;

/// Why a row is a duplicate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reason {
    /// The encoded bytes are the same.
    Exact,
    /// The perceptual hashes are near.
    Near,
    /// The embeddings are similar.
    Similar,
}

impl Reason {
    /// The name of the reason in masks.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Near => "near",
            Self::Similar => "similar",
        }
    }

    /// The filter name under which rows with this reason are counted.
    pub fn filter_name(self) -> &'static str {
        match self {
            Self::Exact => "duplicate.exact",
            Self::Near => "duplicate.near",
            Self::Similar => "duplicate.similar",
        }
    }
}

/// A duplicate, and the row that is kept in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Duplicate {
    /// Sample id of the duplicate.
    pub sample_id: u64,
    /// Why it is a duplicate.
    pub reason: Reason,
    /// Sample id of the kept row.
    pub duplicate_of: u64,
}

impl DedupConfig {
    /// Finds the duplicates, sorted by sample id. Without `embeddings`, similar ones are not looked for.
    ///
    /// Rows are visited from the largest area to the smallest, and in ascending order of sample id
    /// where areas are equal. A row is a duplicate if it resembles a row that is kept. So kept rows
    /// never resemble each other, and every duplicate resembles a kept row: resemblance is not
    /// transitive. The duplicate names the first such row.
    ///
    /// # Errors
    /// If embeddings cannot be read.
    pub fn find_duplicates(
        &self,
        mut rows: Vec<Row>,
        embeddings: Option<&dyn Embeddings>,
    ) -> Result<Vec<Duplicate>> {
        // Duplicate -> the row it equals, which may itself be a near duplicate of another row.
        let mut equals: HashMap<u64, (Reason, u64)> = HashMap::new();
        if self.exact {
            rows = keep_first_of_each(rows, |row| row.sha256, Reason::Exact, &mut equals);
        }
        if let Some(near) = self.near {
            rows = keep_first_of_each(rows, |row| row.phash, Reason::Near, &mut equals);
            rows.sort_unstable_by_key(Row::preference);
            for (row, kept) in find_near_duplicates(&rows, near.phash_distance)? {
                equals.insert(rows[row].sample_id, (Reason::Near, rows[kept].sample_id));
            }
        }
        if let (Some(similar), Some(embeddings)) = (self.similar, embeddings) {
            rows.retain(|row| !equals.contains_key(&row.sample_id));
            rows.sort_unstable_by_key(Row::preference);
            let (cosine, folder) = (similar.cosine as f32, &std::env::temp_dir());
            let search = SimilarSearch::new(&rows, embeddings, cosine, SIMILAR_MEMORY, folder);
            for (row, kept) in decide::find_duplicates(&search, rows.len())? {
                equals.insert(rows[row].sample_id, (Reason::Similar, rows[kept].sample_id));
            }
        }
        let mut duplicates: Vec<Duplicate> =
            equals.keys().map(|&id| resolve_duplicate(&equals, id)).collect();
        duplicates.sort_unstable_by_key(|duplicate| duplicate.sample_id);
        Ok(duplicates)
    }
}

/// Keeps the best row of each group with the same key, and records the others as its equals.
fn keep_first_of_each(
    mut rows: Vec<Row>,
    key: fn(&Row) -> u64,
    reason: Reason,
    equals: &mut HashMap<u64, (Reason, u64)>,
) -> Vec<Row> {
    rows.sort_unstable_by_key(|row| (key(row), row.preference()));
    rows.dedup_by(|row, first| {
        let same = key(row) == key(first);
        if same {
            equals.insert(row.sample_id, (reason, first.sample_id));
        }
        same
    });
    rows
}

/// Follows a row to the kept row. The reason is exact only if all links on the way are exact.
fn resolve_duplicate(equals: &HashMap<u64, (Reason, u64)>, sample_id: u64) -> Duplicate {
    let (mut reason, mut duplicate_of) = (Reason::Exact, sample_id);
    while let Some(&(link_reason, next)) = equals.get(&duplicate_of) {
        (reason, duplicate_of) = (reason.max(link_reason), next);
    }
    Duplicate { sample_id, reason, duplicate_of }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::dedup::config::{MAX_DISTANCE, NearConfig};

    fn row(sample_id: u64, sha256: u64, phash: u64, area: u32) -> Row {
        Row { sample_id, sha256, phash, area }
    }

    const BOTH: DedupConfig =
        DedupConfig { exact: true, near: Some(NearConfig { phash_distance: 3 }), similar: None };

    #[test]
    fn largest_image_is_kept_and_then_smallest_id() {
        let exact = DedupConfig { exact: true, ..DedupConfig::default() };
        let rows = vec![row(5, 1, 0, 10), row(3, 1, 0, 10), row(4, 1, 0, 10), row(1, 2, 0, 99)];
        let found = exact.find_duplicates(rows.clone(), None).unwrap();
        let of = |sample_id, duplicate_of| Duplicate { sample_id, reason: Reason::Exact, duplicate_of };
        assert_eq!(found, [of(4, 3), of(5, 3)]);
        // All four look the same, so the largest is kept in place of the exact duplicates too.
        let near = BOTH.find_duplicates(rows.clone(), None).unwrap();
        assert_eq!(
            near.iter().map(|d| (d.sample_id, d.duplicate_of)).collect::<Vec<_>>(),
            [(3, 1), (4, 1), (5, 1)]
        );
        assert!(near.iter().all(|d| d.reason == Reason::Near));
        assert!(DedupConfig::default().find_duplicates(rows, None).unwrap().is_empty());
    }

    #[test]
    fn resemblance_is_not_transitive() {
        // The distances are 0 - 3 bits - 7 - 3 bits - 63: the ends are 6 bits apart.
        let rows = vec![row(1, 1, 0, 30), row(2, 2, 0b111, 20), row(3, 3, 0b11_1111, 10)];
        let found = BOTH.find_duplicates(rows, None).unwrap();
        assert_eq!(found, [Duplicate { sample_id: 2, reason: Reason::Near, duplicate_of: 1 }]);
    }

    /// The rule, implemented literally.
    fn find_by_rule(config: &DedupConfig, rows: &[Row]) -> Vec<Duplicate> {
        let same = |a: &Row, b: &Row| {
            let near = config.near.is_some_and(|n| (a.phash ^ b.phash).count_ones() <= n.phash_distance);
            (config.exact && a.sha256 == b.sha256) || near
        };
        let mut order = rows.to_vec();
        order.sort_by_key(Row::preference);
        let (mut kept, mut found): (Vec<Row>, Vec<Duplicate>) = (Vec::new(), Vec::new());
        for row in order {
            match kept.iter().find(|other| same(other, &row)) {
                None => kept.push(row),
                Some(other) => {
                    let exact = config.exact && other.sha256 == row.sha256;
                    let reason = if exact { Reason::Exact } else { Reason::Near };
                    found.push(Duplicate { sample_id: row.sample_id, reason, duplicate_of: other.sample_id });
                }
            }
        }
        found.sort_by_key(|duplicate| duplicate.sample_id);
        found
    }

    /// Images with several rows each, and hashes in clusters. The same bytes have the same size and
    /// hash.
    fn rows() -> impl Strategy<Value = Vec<Row>> {
        let image = (0..4_u64, prop::collection::vec(0..64_u32, 0..5), 1..4_u32);
        let images = prop::collection::vec(image, 1..25);
        (images, prop::collection::vec(any::<prop::sample::Index>(), 0..60)).prop_map(|(images, picks)| {
            let row = |(number, pick): (usize, &prop::sample::Index)| {
                let image = pick.index(images.len());
                let (cluster, bits, area) = &images[image];
                let centre = cluster.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let phash = bits.iter().fold(centre, |hash, bit| hash ^ (1 << bit));
                // Sample ids in no particular order.
                let sample_id = (number as u64).wrapping_mul(0xd134_2543_de82_ef95);
                Row { sample_id, sha256: image as u64, phash, area: *area }
            };
            picks.iter().enumerate().map(row).collect()
        })
    }

    proptest! {
        /// The plan follows the rule in any order of rows, and every duplicate resembles a kept
        /// row.
        #[test]
        fn duplicates_follow_the_rule_in_any_order(
            (rows, shuffled) in rows().prop_flat_map(|rows| (Just(rows.clone()), Just(rows).prop_shuffle())),
            exact in any::<bool>(),
            distance in prop::option::of(0..=MAX_DISTANCE),
        ) {
            let near = distance.map(|phash_distance| NearConfig { phash_distance });
            let config = DedupConfig { exact, near, similar: None };
            let plan = config.find_duplicates(rows.clone(), None).unwrap();
            prop_assert_eq!(&config.find_duplicates(shuffled, None).unwrap(), &plan);
            prop_assert_eq!(&plan, &find_by_rule(&config, &rows));
            let find = |id: u64| rows.iter().find(|row| row.sample_id == id).unwrap();
            for duplicate in &plan {
                let (row, kept) = (find(duplicate.sample_id), find(duplicate.duplicate_of));
                prop_assert!(plan.iter().all(|other| other.sample_id != kept.sample_id));
                let like = match duplicate.reason {
                    Reason::Exact => row.sha256 == kept.sha256,
                    Reason::Near => (row.phash ^ kept.phash).count_ones() <= distance.unwrap_or(0),
                    Reason::Similar => false,
                };
                prop_assert!(like);
            }
        }
    }
}
