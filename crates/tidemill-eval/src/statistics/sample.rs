//! A uniform sample of rows that depends on their numbers only, and not on their order or batches.

use std::collections::BinaryHeap;

/// The rows with the smallest hashes of their numbers, at most `capacity`.
#[derive(Debug)]
pub struct FeatureSample {
    capacity: usize,
    rows: BinaryHeap<SampledRow>,
}

#[derive(Debug, PartialEq)]
struct SampledRow {
    hash: u64,
    number: u64,
    features: Vec<f32>,
}

impl Eq for SampledRow {}

impl Ord for SampledRow {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.hash, self.number).cmp(&(other.hash, other.number))
    }
}

impl PartialOrd for SampledRow {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl FeatureSample {
    pub fn new(capacity: usize) -> Self {
        Self { capacity, rows: BinaryHeap::new() }
    }

    /// Offers the row of this number.
    pub fn offer(&mut self, number: u64, features: &[f32]) {
        let hash = mix(number);
        if self.rows.len() >= self.capacity {
            if self.rows.peek().is_none_or(|largest| (largest.hash, largest.number) < (hash, number)) {
                return;
            }
            self.rows.pop();
        }
        self.rows.push(SampledRow { hash, number, features: features.to_vec() });
    }

    /// The sampled rows, in the order of their numbers.
    pub fn into_rows(self) -> Vec<Vec<f32>> {
        let mut rows = self.rows.into_vec();
        rows.sort_unstable_by_key(|row| row.number);
        rows.into_iter().map(|row| row.features).collect()
    }
}

/// SplitMix64 (Steele et al., 2014): a permutation of 64-bit numbers without visible order.
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(order: impl Iterator<Item = u64>, capacity: usize) -> Vec<f32> {
        let mut sample = FeatureSample::new(capacity);
        order.for_each(|number| sample.offer(number, &[number as f32]));
        sample.into_rows().concat()
    }

    #[test]
    fn sample_does_not_depend_on_the_order_of_rows() {
        let forwards = numbers(0..1000, 50);
        assert_eq!(forwards.len(), 50);
        assert_eq!(forwards, numbers((0..1000).rev(), 50));
        assert_eq!(numbers(0..10, 50), (0..10).map(|i| i as f32).collect::<Vec<_>>());
    }

    #[test]
    fn sample_is_uniform() {
        let tenths = numbers(0..100_000, 10_000).iter().fold([0; 10], |mut tenths, number| {
            tenths[*number as usize / 10_000] += 1;
            tenths
        });
        // Five deviations of a binomial count.
        assert!(tenths.iter().all(|count| (850..1150).contains(count)), "{tenths:?}");
    }
}
