//! Weighted round-robin without state: computes which part has turn t, and how many turns each part
//! had before. The parts are the leaves of a balanced tree. At each fork the left half gets round(t
//! w / W) of the first t turns, where w is its weight and W the weight of the fork. So after any
//! number of turns each part has had its share, up to half a turn per level of the tree, and after
//! as many turns as all weights add up to it has had exactly its weight.

use std::ops::Range;

/// The turns of weighted parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interleave {
    /// Sum of the weights before each part, and of all.
    before: Vec<u64>,
}

impl Interleave {
    /// Interleaves parts with these weights. A part with weight 0 never has a turn. Returns `None`
    /// if all weights are 0 or add up to more than 2^62.
    pub fn new(weights: &[u64]) -> Option<Self> {
        let mut before = vec![0u64];
        for weight in weights {
            let sum = before.last()?.checked_add(*weight).filter(|sum| *sum <= 1 << 62)?;
            before.push(sum);
        }
        (*before.last()? > 0).then_some(Self { before })
    }

    /// Sum of all weights: after this many turns, each part has had exactly its weight.
    pub fn period(&self) -> u64 {
        self.weight(&self.all())
    }

    /// The part that has turn `turn` (from 0), and how many turns that part had before.
    pub fn at(&self, turn: u64) -> (usize, u64) {
        let (mut parts, mut turn) = (self.all(), turn);
        while parts.len() > 1 {
            let (left, right) = halves(&parts);
            let before = self.left_turns(turn, &left, &parts);
            let is_left = self.left_turns(turn + 1, &left, &parts) > before;
            (parts, turn) = if is_left { (left, before) } else { (right, turn - before) };
        }
        (parts.start, turn)
    }

    /// How many of the first `turns` turns each part has.
    pub fn counts(&self, turns: u64) -> Vec<u64> {
        let mut counts = vec![0; self.before.len() - 1];
        self.count(turns, self.all(), &mut counts);
        counts
    }

    fn count(&self, turns: u64, parts: Range<usize>, counts: &mut [u64]) {
        if turns == 0 || parts.len() <= 1 {
            counts[parts.start] = turns;
            return;
        }
        let (left, right) = halves(&parts);
        let left_turns = self.left_turns(turns, &left, &parts);
        self.count(left_turns, left, counts);
        self.count(turns - left_turns, right, counts);
    }

    /// How many of the first turns of a fork its left half has.
    fn left_turns(&self, turns: u64, left: &Range<usize>, fork: &Range<usize>) -> u64 {
        let (left, all) = (u128::from(self.weight(left)), u128::from(self.weight(fork)));
        // A fork may have weight 0 if it has no turns.
        ((2 * u128::from(turns) * left + all) / (2 * all).max(1)) as u64
    }

    fn all(&self) -> Range<usize> {
        0..self.before.len() - 1
    }

    fn weight(&self, parts: &Range<usize>) -> u64 {
        self.before[parts.end] - self.before[parts.start]
    }
}

fn halves(parts: &Range<usize>) -> (Range<usize>, Range<usize>) {
    let middle = parts.start + parts.len() / 2;
    (parts.start..middle, middle..parts.end)
}

/// Divides `total` in proportion to weights. The results add up to `total`, and each is off by less
/// than one. Weights of 0 get 0; all results are 0 if all weights are.
pub fn apportion(total: u64, weights: impl Iterator<Item = u64> + Clone) -> Vec<u64> {
    let all: u128 = weights.clone().map(u128::from).sum();
    let mut before = 0;
    let mut cut_before = 0;
    let part = |weight| {
        before += u128::from(weight);
        let cut = (u128::from(total) * before / all.max(1)) as u64;
        cut - std::mem::replace(&mut cut_before, cut)
    };
    weights.map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn turns_are_spread_evenly() {
        let parts = |weights: &[u64], n| -> Vec<usize> {
            let turns = Interleave::new(weights).unwrap();
            (0..n).map(|t| turns.at(t).0).collect()
        };
        assert_eq!(parts(&[1, 1], 6), [0, 1, 0, 1, 0, 1]);
        assert_eq!(parts(&[3, 1], 8), [0, 0, 1, 0, 0, 0, 1, 0]);
        assert_eq!(parts(&[30, 10], 8), parts(&[3, 1], 8), "only proportions count");
        assert_eq!(parts(&[0, 5, 0], 3), [1, 1, 1]);
        assert!(Interleave::new(&[]).is_none() && Interleave::new(&[0, 0]).is_none());
        assert!(Interleave::new(&[u64::MAX, 1]).is_none());
    }

    proptest! {
        #[test]
        fn every_prefix_is_proportional(
            weights in prop::collection::vec(prop_oneof![Just(0u64), 0u64..20, 1u64 << 50..1 << 55], 1..20),
            from in prop_oneof![Just(0u64), 0u64..1 << 60],
        ) {
            prop_assume!(weights.iter().any(|w| *w > 0));
            let turns = Interleave::new(&weights).unwrap();
            let levels = u128::from(weights.len().next_power_of_two().ilog2());
            let mut counts = turns.counts(from);
            for t in from..from + 100 {
                prop_assert_eq!(counts.iter().sum::<u64>(), t);
                for (count, weight) in counts.iter().zip(&weights) {
                    // |count - t * weight / all| <= levels / 2, in integers.
                    let all = u128::from(turns.period());
                    let off = (u128::from(*count) * all).abs_diff(u128::from(t) * u128::from(*weight));
                    prop_assert!(2 * off <= levels * all, "{counts:?} of {weights:?} at {t}");
                }
                let (part, before) = turns.at(t);
                prop_assert_eq!(counts[part], before);
                counts[part] += 1;
            }
            prop_assert_eq!(turns.counts(from + 100), counts);
            prop_assert_eq!(turns.counts(turns.period()), weights);
        }

        #[test]
        fn apportioned_parts_add_up(total in 0u64..1 << 40, weights in prop::collection::vec(0u64..1 << 40, 1..10)) {
            let parts = apportion(total, weights.iter().copied());
            let all: u64 = weights.iter().sum();
            prop_assert_eq!(parts.iter().sum::<u64>(), if all > 0 { total } else { 0 });
            for (part, weight) in parts.iter().zip(&weights) {
                let exact = total as f64 * *weight as f64 / all.max(1) as f64;
                prop_assert!((*part as f64 - exact).abs() < 1.0 + 1e-3, "{part} for {exact}");
            }
        }
    }
}
