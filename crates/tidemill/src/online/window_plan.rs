//! How units become shuffle windows. Units are permuted anew in each epoch and split into windows
//! of several units, whose rows are shuffled together. All of it follows from the seed.

use tidemill_store::stream::order::permutation::{Permutation, derive_key};

/// Purposes of random keys: they keep the orders of units and of rows apart.
const UNIT_ORDER: u64 = 1;
const ROW_ORDER: u64 = 2;

/// The windows of a run, numbered from 0 throughout all epochs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WindowPlan {
    seed: u64,
    units: u64,
    units_per_window: u64,
}

impl WindowPlan {
    /// A plan for this many units (at least one).
    pub fn new(seed: u64, units: usize, units_per_window: usize) -> Self {
        Self { seed, units: units as u64, units_per_window: units_per_window.max(1) as u64 }
    }

    /// The number of windows in an epoch. The last window of an epoch may have fewer units.
    pub fn windows_per_epoch(&self) -> u64 {
        self.units.div_ceil(self.units_per_window)
    }

    /// The epoch of a window.
    pub fn epoch(&self, window: u64) -> u64 {
        window / self.windows_per_epoch()
    }

    /// The units of a window, as indices into the source's list of units.
    pub fn unit_indices(&self, window: u64) -> impl Iterator<Item = usize> + use<> {
        let first = window % self.windows_per_epoch() * self.units_per_window;
        let order = Permutation::new(self.units, derive_key(self.seed, UNIT_ORDER, self.epoch(window)));
        (first..(first + self.units_per_window).min(self.units)).map(move |place| order.at(place) as usize)
    }

    /// The order in which the rows of a window are trained on.
    pub fn row_order(&self, window: u64, rows: u64) -> Permutation {
        Permutation::new(rows, derive_key(self.seed, ROW_ORDER, window))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_epoch_has_every_unit_once_in_its_own_order() {
        let plan = WindowPlan::new(7, 103, 4);
        assert_eq!(plan.windows_per_epoch(), 26);
        let epoch =
            |n: u64| -> Vec<usize> { (26 * n..26 * (n + 1)).flat_map(|w| plan.unit_indices(w)).collect() };
        for n in 0..3 {
            assert_eq!(epoch(n).into_iter().collect::<BTreeSet<_>>(), (0..103).collect());
            assert_eq!((plan.epoch(26 * n), plan.epoch(26 * n + 25)), (n, n));
        }
        assert_ne!(epoch(0), epoch(1));
        assert_ne!(epoch(0), (0..103).collect::<Vec<_>>());
        assert_eq!(plan.unit_indices(25).count(), 3, "the last window is shorter");
    }
}
