//! Limits requests: a bucket per rater, which fills at a steady rate.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Instant;

/// Buckets of requests, one for each key.
#[derive(Debug)]
pub struct RateLimit {
    /// Requests per second.
    rate: f64,
    /// Requests at once.
    burst: f64,
    buckets: Mutex<HashMap<i64, Bucket>>,
}

#[derive(Debug)]
struct Bucket {
    requests: f64,
    filled: Instant,
}

impl RateLimit {
    /// A limit of `rate` requests a second, and `burst` at once.
    pub fn new(rate: f64, burst: f64) -> Self {
        Self { rate, burst, buckets: Mutex::default() }
    }

    /// Whether a request of `key` is allowed at this time. Keys are never many: raters, or one for
    /// everybody.
    pub fn is_allowed(&self, key: i64, at: Instant) -> bool {
        let Ok(mut buckets) = self.buckets.lock() else { return true };
        let bucket = buckets.entry(key).or_insert(Bucket { requests: self.burst, filled: at });
        let passed = at.saturating_duration_since(bucket.filled).as_secs_f64();
        bucket.requests = (bucket.requests + passed * self.rate).min(self.burst);
        bucket.filled = at;
        let is_allowed = bucket.requests >= 1.0;
        if is_allowed {
            bucket.requests -= 1.0;
        }
        is_allowed
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn bucket_allows_a_burst_and_then_the_rate() {
        let limit = RateLimit::new(2.0, 5.0);
        let start = Instant::now();
        let allowed = |key, at| limit.is_allowed(key, at);
        assert_eq!((0..9).filter(|_| allowed(1, start)).count(), 5);
        assert!(allowed(2, start), "each key has its own bucket");
        assert!(!allowed(1, start + Duration::from_millis(400)));
        assert_eq!((0..9).filter(|_| allowed(1, start + Duration::from_millis(1500))).count(), 3);
        assert_eq!((0..9).filter(|_| allowed(1, start + Duration::from_secs(900))).count(), 5);
    }
}
