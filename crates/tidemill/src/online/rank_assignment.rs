//! Which rows come when, and who gets them: arithmetic only. Units are permuted anew in each epoch and cut into *windows* of
//! several units, whose rows are shuffled together. Each rank goes along a *lane*, every n-th window. How many rows a window has
//! shows only when they are prepared; so lanes are not equally long, but no row is lost or comes twice, even if the number of
//! ranks changes.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use tidemill_store::stream::order::permutation::{Permutation, derive_key};

/// Keeps the orders of units and of rows apart.
const UNITS: u64 = 1;
const ROWS: u64 = 2;

/// How units become windows. Windows are numbered from 0, on and on over the epochs.
#[derive(Debug, Clone, Copy)]
pub struct Windows {
    seed: u64,
    units: u64,
    each: u64,
}

impl Windows {
    /// So many units, at least one, of which `each` are shuffled together.
    pub fn new(seed: u64, units: usize, each: usize) -> Self {
        Self { seed, units: units as u64, each: each.max(1) as u64 }
    }

    /// Windows of an epoch.
    pub fn per_epoch(&self) -> u64 {
        self.units.div_ceil(self.each)
    }

    /// The epoch of a window.
    pub fn epoch(&self, window: u64) -> u64 {
        window / self.per_epoch()
    }

    /// The units of a window, by their numbers.
    pub fn units(&self, window: u64) -> impl Iterator<Item = usize> + use<> {
        let first = window % self.per_epoch() * self.each;
        let order = Permutation::new(self.units, derive_key(self.seed, UNITS, self.epoch(window)));
        (first..(first + self.each).min(self.units)).map(move |place| order.at(place) as usize)
    }

    /// The order of the rows of a window that has so many.
    pub fn rows(&self, window: u64, rows: u64) -> Permutation {
        Permutation::new(rows, derive_key(self.seed, ROWS, window))
    }
}

/// A window of which some rows may have been given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Open {
    /// Its number.
    pub window: u64,
    /// Rows that were given.
    pub given: u64,
}

/// What a rank has before it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lane {
    /// Windows that come before all others.
    first: VecDeque<Open>,
    /// The window after those; then every n-th, of n lanes.
    next: u64,
}

impl Lane {
    /// The windows to come, of so many lanes.
    pub fn windows(&self, lanes: usize) -> impl Iterator<Item = Open> + use<> {
        let later = (self.next..).step_by(lanes).map(|window| Open { window, given: 0 });
        self.first.clone().into_iter().chain(later)
    }

    /// Notes that so many rows of the window at the front have been given.
    pub fn give(&mut self, rows: u64, lanes: usize) {
        if self.first.is_empty() {
            self.first.push_back(Open { window: self.next, given: 0 });
            self.next += lanes as u64;
        }
        self.first[0].given = rows;
    }

    /// Leaves the window at the front.
    pub fn leave(&mut self, lanes: usize) {
        if self.first.pop_front().is_none() {
            self.next += lanes as u64;
        }
    }

    /// Leaves the windows of which rows have been given.
    pub fn leave_begun(&mut self) {
        self.first.retain(|open| open.given == 0);
    }
}

/// The lanes of a run that begins.
pub fn start(lanes: usize) -> Vec<Lane> {
    (0..lanes as u64).map(|next| Lane { first: VecDeque::new(), next }).collect()
}

/// Deals what is before some lanes out to another number of them.
pub fn deal(lanes: &[Lane], ranks: usize) -> Vec<Lane> {
    if lanes.len() == ranks {
        return lanes.to_vec();
    }
    // Up to here windows have been dealt out; some lanes are ahead of others.
    let dealt = lanes.iter().map(|lane| lane.next).max().unwrap_or(0);
    let left =
        |lane: &Lane| lane.windows(lanes.len()).take_while(|open| open.window < dealt).collect::<Vec<_>>();
    let mut left: Vec<Open> = lanes.iter().flat_map(left).collect();
    left.sort_unstable_by_key(|open| open.window);
    let mut anew: Vec<Lane> =
        (0..ranks as u64).map(|rank| Lane { first: VecDeque::new(), next: dealt + rank }).collect();
    for (i, open) in left.into_iter().enumerate() {
        anew[i % ranks].first.push_back(open);
    }
    anew
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_epoch_has_each_unit_once_in_an_order_of_its_own() {
        let windows = Windows::new(7, 103, 4);
        assert_eq!(windows.per_epoch(), 26);
        let epoch =
            |n: u64| -> Vec<usize> { (26 * n..26 * (n + 1)).flat_map(|w| windows.units(w)).collect() };
        for n in 0..3 {
            assert_eq!(epoch(n).into_iter().collect::<BTreeSet<_>>(), (0..103).collect());
            assert_eq!((windows.epoch(26 * n), windows.epoch(26 * n + 25)), (n, n));
        }
        assert_ne!(epoch(0), epoch(1));
        assert_ne!(epoch(0), (0..103).collect::<Vec<_>>());
        assert_eq!(windows.units(25).count(), 3, "the last window is shorter");
    }

    /// What ranks do until the state is saved, and with how many ranks the run goes on.
    fn stretches() -> impl Strategy<Value = Vec<(usize, Vec<(usize, u64)>)>> {
        let rows = prop::collection::vec((0..8_usize, 1..30_u64), 0..40);
        prop::collection::vec((1..8_usize, rows), 1..8)
    }

    proptest! {
        /// However often a run is stopped and goes on with whatever ranks, no row is lost and none comes twice.
        #[test]
        fn rows_come_once(stretches in stretches(), salt in 0..20_u64) {
            // Some have none.
            let rows_of = |window: u64| (7919 * window + salt) % 20;
            let mut lanes = start(stretches[0].0);
            let mut given: BTreeMap<u64, u64> = BTreeMap::new();
            for (ranks, steps) in stretches {
                lanes = deal(&lanes, ranks);
                for (rank, rows) in steps {
                    let (lane, mut rows) = (&mut lanes[rank % ranks], rows);
                    while rows > 0 {
                        let front = lane.windows(ranks).next().unwrap();
                        let more = rows.min(rows_of(front.window) - front.given);
                        prop_assert_eq!(given.get(&front.window).copied().unwrap_or(0), front.given);
                        given.insert(front.window, front.given + more);
                        rows -= more;
                        match front.given + more == rows_of(front.window) {
                            true => lane.leave(ranks),
                            false => lane.give(front.given + more, ranks),
                        }
                    }
                }
            }
            // What is before the lanes is what is left: of each window once.
            let ranks = lanes.len();
            let mut left: BTreeMap<u64, u64> = BTreeMap::new();
            for lane in &lanes {
                for open in lane.windows(ranks).take_while(|open| open.window < 2000) {
                    prop_assert_eq!(left.insert(open.window, rows_of(open.window) - open.given), None);
                }
            }
            for window in 0..1000 {
                let (given, left) = (given.get(&window).copied().unwrap_or(0), left.get(&window).copied().unwrap_or(0));
                prop_assert_eq!(given + left, rows_of(window), "window {}", window);
            }
        }
    }
}
