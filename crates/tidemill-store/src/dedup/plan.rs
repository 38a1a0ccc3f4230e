//! Which rows are left out, given the hashes of all.

use std::collections::HashMap;

use serde::Serialize;

use crate::dedup::config::DedupConfig;
use crate::dedup::near_duplicates;
use crate::dedup::row::Row;

/// Why a row is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reason {
    /// The same bytes.
    Exact,
    /// A near perceptual hash.
    Near,
}

impl Reason {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Near => "near",
        }
    }

    /// The name that rows left out for this reason are counted under.
    pub fn filter(self) -> &'static str {
        match self {
            Self::Exact => "duplicate.exact",
            Self::Near => "duplicate.near",
        }
    }
}

/// A row to leave out, and the one that stays in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Duplicate {
    /// The row.
    pub sample_id: u64,
    /// Why.
    pub reason: Reason,
    /// The row that stays.
    pub duplicate_of: u64,
}

impl DedupConfig {
    /// The rows to leave out, by sample id.
    ///
    /// Rows are gone through from the largest area down, and from the smallest sample id up where areas are equal. A row is
    /// left out if it is a duplicate of one that stays, so what stays has no duplicates in it, and whatever is left out
    /// has a duplicate that stays: resemblance is not passed on from row to row. The row named is the first such.
    pub fn plan(&self, mut rows: Vec<Row>) -> Vec<Duplicate> {
        // Left out -> the row it equals, which may be left out in turn for one that it resembles.
        let mut equals: HashMap<u64, (Reason, u64)> = HashMap::new();
        if self.exact {
            rows = first_of_each(rows, |row| row.sha256, Reason::Exact, &mut equals);
        }
        if let Some(near) = self.near {
            rows = first_of_each(rows, |row| row.phash, Reason::Near, &mut equals);
            rows.sort_unstable_by_key(Row::preference);
            for (row, kept) in near_duplicates::duplicates(&rows, near.phash_distance) {
                equals.insert(rows[row].sample_id, (Reason::Near, rows[kept].sample_id));
            }
        }
        let mut duplicates: Vec<Duplicate> = equals.keys().map(|&id| follow(&equals, id)).collect();
        duplicates.sort_unstable_by_key(|duplicate| duplicate.sample_id);
        duplicates
    }
}

/// The best row of each group with the same key; the others are noted as its equals.
fn first_of_each(
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

/// Follows a row to the one that stays. It is an exact duplicate only if no resemblance lies on the way.
fn follow(equals: &HashMap<u64, (Reason, u64)>, sample_id: u64) -> Duplicate {
    let (mut reason, mut duplicate_of) = (Reason::Exact, sample_id);
    while let Some(&(why, of)) = equals.get(&duplicate_of) {
        (reason, duplicate_of) = (reason.max(why), of);
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

    const BOTH: DedupConfig = DedupConfig { exact: true, near: Some(NearConfig { phash_distance: 3 }) };

    #[test]
    fn the_largest_stays_and_of_equals_the_smallest_id() {
        let exact = DedupConfig { exact: true, near: None };
        let rows = vec![row(5, 1, 0, 10), row(3, 1, 0, 10), row(4, 1, 0, 10), row(1, 2, 0, 99)];
        let found = exact.plan(rows.clone());
        let of = |sample_id, duplicate_of| Duplicate { sample_id, reason: Reason::Exact, duplicate_of };
        assert_eq!(found, [of(4, 3), of(5, 3)]);
        // All four look the same, so the largest stays in place of the exact duplicates too.
        let near = BOTH.plan(rows.clone());
        assert_eq!(
            near.iter().map(|d| (d.sample_id, d.duplicate_of)).collect::<Vec<_>>(),
            [(3, 1), (4, 1), (5, 1)]
        );
        assert!(near.iter().all(|d| d.reason == Reason::Near));
        assert!(DedupConfig::default().plan(rows).is_empty());
    }

    #[test]
    fn resemblance_is_not_passed_on() {
        // 0 - 3 bits - 7 - 3 bits - 63: the ends are 6 bits apart.
        let rows = vec![row(1, 1, 0, 30), row(2, 2, 0b111, 20), row(3, 3, 0b11_1111, 10)];
        let found = BOTH.plan(rows);
        assert_eq!(found, [Duplicate { sample_id: 2, reason: Reason::Near, duplicate_of: 1 }]);
    }

    /// The rule, word by word.
    fn by_the_rule(config: &DedupConfig, rows: &[Row]) -> Vec<Duplicate> {
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

    /// Images of which several rows have each, with hashes in clusters. The same bytes have the same size and look.
    fn rows() -> impl Strategy<Value = Vec<Row>> {
        let image = (0..4_u64, prop::collection::vec(0..64_u32, 0..5), 1..4_u32);
        let images = prop::collection::vec(image, 1..25);
        (images, prop::collection::vec(any::<prop::sample::Index>(), 0..60)).prop_map(|(images, picks)| {
            let row = |(number, pick): (usize, &prop::sample::Index)| {
                let image = pick.index(images.len());
                let (cluster, bits, area) = &images[image];
                let centre = cluster.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let phash = bits.iter().fold(centre, |hash, bit| hash ^ (1 << bit));
                // Ids in no order.
                let sample_id = (number as u64).wrapping_mul(0xd134_2543_de82_ef95);
                Row { sample_id, sha256: image as u64, phash, area: *area }
            };
            picks.iter().enumerate().map(row).collect()
        })
    }

    proptest! {
        /// The plan is the rule's, whatever order the rows come in; and what is left out has its like among what stays.
        #[test]
        fn the_plan_is_the_rules_in_any_order(
            (rows, shuffled) in rows().prop_flat_map(|rows| (Just(rows.clone()), Just(rows).prop_shuffle())),
            exact in any::<bool>(),
            distance in prop::option::of(0..=MAX_DISTANCE),
        ) {
            let config = DedupConfig { exact, near: distance.map(|phash_distance| NearConfig { phash_distance }) };
            let plan = config.plan(rows.clone());
            prop_assert_eq!(&config.plan(shuffled), &plan);
            prop_assert_eq!(&plan, &by_the_rule(&config, &rows));
            let find = |id: u64| rows.iter().find(|row| row.sample_id == id).unwrap();
            for duplicate in &plan {
                let (row, kept) = (find(duplicate.sample_id), find(duplicate.duplicate_of));
                prop_assert!(plan.iter().all(|other| other.sample_id != kept.sample_id));
                let like = match duplicate.reason {
                    Reason::Exact => row.sha256 == kept.sha256,
                    Reason::Near => (row.phash ^ kept.phash).count_ones() <= distance.unwrap_or(0),
                };
                prop_assert!(like);
            }
        }
    }
}
