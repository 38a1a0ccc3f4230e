//! Wilson's interval of a share.

/// The confidence of all intervals.
pub const CONFIDENCE: f64 = 0.95;

/// The normal distribution's quantile at half of 1 + [`CONFIDENCE`].
pub const NORMAL_QUANTILE: f64 = 1.959_963_984_540_054;

/// Wilson's interval of a share that was observed as `share` in `count` independent judgements.
/// `quantile` is that of the normal distribution, or of Student's, at half of
/// 1 + [`CONFIDENCE`]. `count` may be a fraction, for judgements that depend on each other.
///
/// Source: Wilson, "Probable inference, the law of succession, and statistical inference" (1927).
pub fn wilson_interval(share: f64, count: f64, quantile: f64) -> (f64, f64) {
    if count <= 0.0 {
        return (0.0, 1.0);
    }
    let z2 = quantile * quantile;
    let centre = (share + z2 / (2.0 * count)) / (1.0 + z2 / count);
    let half = quantile / (1.0 + z2 / count)
        * (share * (1.0 - share) / count + z2 / (4.0 * count * count)).max(0.0).sqrt();
    ((centre - half).max(0.0), (centre + half).min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `statsmodels.stats.proportion.proportion_confint(k, n, method="wilson")`, version 0.15.
    #[test]
    fn interval_equals_that_of_statsmodels() {
        for (successes, count, low, high) in [
            (0.0, 10.0, 0.0, 0.277_532_799_862_889_26),
            (7.0, 10.0, 0.396_778_147_461_145_37, 0.892_208_732_593_698_9),
            (520.0, 1000.0, 0.489_017_724_657_519_1, 0.550_829_205_003_058_9),
        ] {
            let (ours_low, ours_high) = wilson_interval(successes / count, count, NORMAL_QUANTILE);
            assert!((ours_low - low).abs() < 1e-12, "{ours_low} {low}");
            assert!((ours_high - high).abs() < 1e-12, "{ours_high} {high}");
        }
        assert_eq!(wilson_interval(0.5, 0.0, 1.96), (0.0, 1.0));
    }
}
