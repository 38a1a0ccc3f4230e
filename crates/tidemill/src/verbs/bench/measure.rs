//! Wall time, median, and a pool of one thread.

use std::time::{Duration, Instant};

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::error::{Error, Result};

/// Creates a rayon pool of one thread. Work that is installed there uses one core.
pub fn single_thread_pool() -> Result<ThreadPool> {
    ThreadPoolBuilder::new().num_threads(1).build().map_err(|_| Error::Thread("bench"))
}

/// Runs `work` and returns its result and wall time.
pub fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<(T, Duration)> {
    let start = Instant::now();
    Ok((work()?, start.elapsed()))
}

/// The median. It is the mean of the middle two if the number of values is even, and NaN without
/// values.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.len().saturating_sub(1) / 2, values.len() / 2);
    match (values.get(low), values.get(high)) {
        (Some(low), Some(high)) => f64::midpoint(*low, *high),
        _ => f64::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn median_is_the_middle_value_or_the_mean_of_the_middle_two() {
        for (values, expected) in [(vec![3.0], 3.0), (vec![9.0, 1.0, 2.0], 2.0), (vec![4.0, 1.0], 2.5)] {
            assert_eq!(median(values.clone()).to_bits(), f64::to_bits(expected), "{values:?}");
        }
    }
}
