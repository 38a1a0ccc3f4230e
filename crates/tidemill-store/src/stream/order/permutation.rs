//! Keyed permutations. A Feistel network with cycle walking computes the i-th element of a
//! permutation of any size without computing the others. The Fisher-Yates shuffle is for lists that
//! fit in memory.

use twox_hash::XxHash3_64;

/// Enough for every pair of elements to look independent (Luby and Rackoff need four for a strong
/// permutation).
const ROUNDS: u64 = 6;

/// Derives a 64-bit key from a seed and two numbers.
pub fn derive_key(seed: u64, a: u64, b: u64) -> u64 {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&a.to_le_bytes());
    bytes[8..].copy_from_slice(&b.to_le_bytes());
    XxHash3_64::oneshot_with_seed(seed, &bytes)
}

/// A pseudo-random permutation of `0..n`.
#[derive(Debug, Clone, Copy)]
pub struct Permutation {
    n: u64,
    /// The network permutes `0..side * side`, the smallest such range that contains `0..n`.
    side: u64,
    key: u64,
}

impl Permutation {
    /// The permutation of `0..n` with this key. `n` must be below 2^62.
    pub fn new(n: u64, key: u64) -> Self {
        let root = n.isqrt();
        Self { n, side: root + u64::from(root * root < n), key }
    }

    /// The element at position `i`, which must be less than `n`.
    pub fn at(&self, i: u64) -> u64 {
        let mut x = self.network(i);
        // A walk that starts inside `0..n` returns to it, after less than one extra step on
        // average.
        while x >= self.n {
            x = self.network(x);
        }
        x
    }

    /// The position of an element, which must be less than `n`: the inverse of [`at`](Self::at).
    pub fn position_of(&self, element: u64) -> u64 {
        let mut x = self.inverse(element);
        while x >= self.n {
            x = self.inverse(x);
        }
        x
    }

    fn network(&self, x: u64) -> u64 {
        let (mut left, mut right) = (x / self.side, x % self.side);
        for round in 0..ROUNDS {
            (left, right) = (right, (left + self.draw(round, right)) % self.side);
        }
        left * self.side + right
    }

    fn inverse(&self, x: u64) -> u64 {
        let (mut left, mut right) = (x / self.side, x % self.side);
        for round in (0..ROUNDS).rev() {
            (left, right) = ((right + self.side - self.draw(round, left)) % self.side, left);
        }
        left * self.side + right
    }

    fn draw(&self, round: u64, half: u64) -> u64 {
        derive_key(self.key, round, half) % self.side
    }
}

/// Shuffles a slice (Fisher-Yates). Over all keys, every order is equally likely.
pub fn shuffle<T>(items: &mut [T], key: u64) {
    for i in (1..items.len()).rev() {
        // The high half of a 64 x 64-bit product is a number below i + 1, uniform up to 2^-64.
        let draw = u128::from(derive_key(key, i as u64, 0)) * (i as u128 + 1);
        items.swap(i, (draw >> 64) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_element_comes_once(n in 1u64..3000, key: u64) {
            let permutation = Permutation::new(n, key);
            let mut seen = vec![false; n as usize];
            for i in 0..n {
                seen[permutation.at(i) as usize] = true;
                prop_assert_eq!(permutation.position_of(permutation.at(i)), i);
            }
            prop_assert!(seen.into_iter().all(|seen| seen));
        }
    }

    /// Pearson's chi-squared of how often each element lands at each position, compared with
    /// uniform, in standard deviations.
    fn deviation(n: usize, order: impl Fn(u64) -> Vec<u64>) -> f64 {
        let keys = 4000u64;
        let mut counts = vec![0u32; n * n];
        for key in 0..keys {
            for (position, element) in order(key).into_iter().enumerate() {
                counts[position * n + element as usize] += 1;
            }
        }
        let expected = keys as f64 / n as f64;
        let chi2: f64 = counts.iter().map(|c| (f64::from(*c) - expected).powi(2) / expected).sum();
        let freedom = ((n - 1) * (n - 1)) as f64;
        (chi2 - freedom) / (2.0 * freedom).sqrt()
    }

    #[test]
    fn positions_are_uniform() {
        for n in [3, 5, 17, 64, 100] {
            let feistel = deviation(n, |k| {
                (0..n as u64).map(|i| Permutation::new(n as u64, derive_key(k, 1, 2)).at(i)).collect()
            });
            let yates = deviation(n, |k| {
                let mut items: Vec<u64> = (0..n as u64).collect();
                shuffle(&mut items, derive_key(k, 3, 4));
                items
            });
            println!("n = {n}: Feistel {feistel:.2} sigma, Fisher-Yates {yates:.2} sigma");
            assert!(feistel.abs() < 5.0 && yates.abs() < 5.0);
        }
    }

    #[test]
    fn order_of_a_key_never_changes() {
        let places: Vec<u64> = (0..8).map(|i| Permutation::new(8, 42).at(i)).collect();
        let mut items: Vec<u64> = (0..8).collect();
        shuffle(&mut items, 42);
        // Resuming a run with a later version depends on these.
        assert_eq!((places, items), (vec![4, 1, 0, 3, 6, 7, 5, 2], vec![2, 5, 4, 0, 1, 7, 3, 6]));
    }
}
