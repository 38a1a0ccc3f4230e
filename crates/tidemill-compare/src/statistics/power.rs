//! How many judgements a difference takes to show.

use super::wilson::NORMAL_QUANTILE;

/// The chance with which a true difference is to show.
pub const POWER: f64 = 0.8;

/// The normal distribution's quantile at [`POWER`].
const POWER_QUANTILE: f64 = 0.841_621_233_572_914_3;

/// The number of judgements after which a preference of `0.5 + difference` is told from 0.5 with a
/// chance of [`POWER`], at a confidence of 95 %. `per_independent` is how many judgements say as much
/// as an independent one. It stays the same only if more judgements come with more prompts and
/// raters, in proportion.
pub fn judgements_needed(difference: f64, per_independent: f64) -> u64 {
    let share = 0.5 + difference;
    let root = NORMAL_QUANTILE * 0.5 + POWER_QUANTILE * (share * (1.0 - share)).max(0.0).sqrt();
    (per_independent * (root / difference).powi(2)).ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the textbooks' one-sample test of a share: 783 for 0.55, 194 for 0.6.
    #[test]
    fn number_equals_that_of_the_test_of_one_share() {
        assert_eq!(judgements_needed(0.05, 1.0), 783);
        assert_eq!(judgements_needed(0.1, 1.0), 194);
        assert_eq!(judgements_needed(0.1, 2.0), 388);
    }
}
