//! Which rank trains on which windows: each rank takes every n-th window, for n ranks. The number
//! of rows in a window is known only once they are prepared, so ranks advance at different speeds.
//! Still no row is lost or comes twice, even if the number of ranks changes.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// A window, and how many of its rows have been taken, in the window's shuffled order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WindowPosition {
    /// The window's number.
    pub window: u64,
    /// Rows that have been taken.
    #[serde(rename = "given")]
    pub rows_taken: u64,
}

/// The windows that a rank has left to train on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RankAssignment {
    /// Windows that come before all others: the one that rows are taken from, and those that
    /// another number of ranks left behind.
    #[serde(rename = "first")]
    front: VecDeque<WindowPosition>,
    /// The window after those. Every n-th window follows, for n ranks.
    next: u64,
}

impl RankAssignment {
    /// The windows that remain, for this number of ranks. The iterator does not end.
    pub fn remaining_windows(&self, ranks: usize) -> impl Iterator<Item = WindowPosition> + use<> {
        let later = (self.next..).step_by(ranks).map(|window| WindowPosition { window, rows_taken: 0 });
        self.front.clone().into_iter().chain(later)
    }

    /// Records that this many rows of the first window have been taken.
    pub fn set_rows_taken(&mut self, rows: u64, ranks: usize) {
        if self.front.is_empty() {
            self.front.push_back(WindowPosition { window: self.next, rows_taken: 0 });
            self.next += ranks as u64;
        }
        self.front[0].rows_taken = rows;
    }

    /// Records that all rows of the first window have been taken.
    pub fn finish_window(&mut self, ranks: usize) {
        if self.front.pop_front().is_none() {
            self.next += ranks as u64;
        }
    }

    /// Gives up the windows from which some rows have been taken.
    pub fn abandon_started_windows(&mut self) {
        self.front.retain(|position| position.rows_taken == 0);
    }
}

/// The assignments at the start of a run.
pub(crate) fn initial_assignments(ranks: usize) -> Vec<RankAssignment> {
    (0..ranks as u64).map(|next| RankAssignment { front: VecDeque::new(), next }).collect()
}

/// Distributes what some ranks have left to another number of ranks.
pub(crate) fn redistribute(assignments: &[RankAssignment], ranks: usize) -> Vec<RankAssignment> {
    if assignments.len() == ranks {
        return assignments.to_vec();
    }
    // Some ranks are ahead of others. All windows from here on are untouched.
    let untouched = assignments.iter().map(|assignment| assignment.next).max().unwrap_or(0);
    let left_of = |assignment: &RankAssignment| {
        let remaining = assignment.remaining_windows(assignments.len());
        remaining.take_while(|position| position.window < untouched).collect::<Vec<_>>()
    };
    let mut left: Vec<WindowPosition> = assignments.iter().flat_map(left_of).collect();
    left.sort_unstable_by_key(|position| position.window);
    let mut redistributed: Vec<RankAssignment> = (0..ranks as u64)
        .map(|rank| RankAssignment { front: VecDeque::new(), next: untouched + rank })
        .collect();
    for (i, position) in left.into_iter().enumerate() {
        redistributed[i % ranks].front.push_back(position);
    }
    redistributed
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Parts of a run, each with a number of ranks, and ranks that take rows until the state is
    /// saved.
    fn run_parts() -> impl Strategy<Value = Vec<(usize, Vec<(usize, u64)>)>> {
        let takes = prop::collection::vec((0..8_usize, 1..30_u64), 0..40);
        prop::collection::vec((1..8_usize, takes), 1..8)
    }

    proptest! {
        #[test]
        fn every_row_comes_once_through_resumes_with_other_ranks(parts in run_parts(), salt in 0..20_u64) {
            // Some windows have no rows.
            let rows_of = |window: u64| (7919 * window + salt) % 20;
            let mut assignments = initial_assignments(parts[0].0);
            let mut taken: BTreeMap<u64, u64> = BTreeMap::new();
            for (ranks, takes) in parts {
                assignments = redistribute(&assignments, ranks);
                for (rank, rows) in takes {
                    let (assignment, mut rows) = (&mut assignments[rank % ranks], rows);
                    while rows > 0 {
                        let front = assignment.remaining_windows(ranks).next().unwrap();
                        let more = rows.min(rows_of(front.window) - front.rows_taken);
                        prop_assert_eq!(taken.get(&front.window).copied().unwrap_or(0), front.rows_taken);
                        taken.insert(front.window, front.rows_taken + more);
                        rows -= more;
                        match front.rows_taken + more == rows_of(front.window) {
                            true => assignment.finish_window(ranks),
                            false => assignment.set_rows_taken(front.rows_taken + more, ranks),
                        }
                    }
                }
            }
            // The assignments together have exactly what is left, each window once.
            let ranks = assignments.len();
            let mut left: BTreeMap<u64, u64> = BTreeMap::new();
            for assignment in &assignments {
                for position in assignment.remaining_windows(ranks).take_while(|it| it.window < 2000) {
                    let rows = rows_of(position.window) - position.rows_taken;
                    prop_assert_eq!(left.insert(position.window, rows), None);
                }
            }
            for window in 0..1000 {
                let rows = |map: &BTreeMap<u64, u64>| map.get(&window).copied().unwrap_or(0);
                prop_assert_eq!(rows(&taken) + rows(&left), rows_of(window), "window {}", window);
            }
        }
    }
}
