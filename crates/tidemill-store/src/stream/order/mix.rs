//! The dataset mix: how much of each dataset is in the stream.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Proportions are rounded to multiples of 1 / this, so a share is off by less than one row in
/// 10^12.
const PROPORTIONS: f64 = 1e12;

/// How much of a dataset is in a mix. Either all amounts of a mix are proportions, or none.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MixAmount {
    /// The dataset's share of all rows, as a weight relative to the other datasets.
    Proportion(f64),
    /// How often its rows come per epoch of the mix. With 0.5, one epoch of the mix has one half of
    /// them, and the next epoch the other half.
    Repeat(f64),
    /// The dataset's rows per epoch of the mix.
    Count(u64),
}

/// Computes the weights of datasets: the rows of each in an epoch of the mix, or parts of 10^12 if
/// they are mixed by proportion. `rows` holds the number of rows of each dataset, in the order of
/// the names, as does the result.
///
/// # Errors
/// [`Error::Config`] if an amount is not valid, or does not fit the other amounts.
pub fn compute_weights(mix: &BTreeMap<String, MixAmount>, rows: &[u64]) -> Result<Vec<u64>> {
    let proportions = mix.values().map(|amount| match amount {
        MixAmount::Proportion(weight) => *weight,
        MixAmount::Repeat(_) | MixAmount::Count(_) => 0.0,
    });
    let all: f64 = proportions.sum();
    if all > 0.0 && mix.values().any(|amount| !matches!(amount, MixAmount::Proportion(_))) {
        return refuse(
            "proportions and repeats or counts cannot be mixed; use one of the two for all datasets".into(),
        );
    }
    mix.iter().zip(rows).map(|((name, amount), rows)| compute_weight(name, *amount, all, *rows)).collect()
}

fn compute_weight(name: &str, amount: MixAmount, all: f64, rows: u64) -> Result<u64> {
    let (weight, what) = match amount {
        MixAmount::Proportion(weight) => (weight / all * PROPORTIONS, "proportion"),
        MixAmount::Repeat(times) => (times * rows as f64, "repeat"),
        MixAmount::Count(count) => (count as f64, "count"),
    };
    if rows == 0 {
        return refuse(format!("dataset `{name}` has no rows to train on; leave it out"));
    }
    let weight = weight.round();
    if !(1.0..1e18).contains(&weight) {
        return refuse(format!(
            "`{what}` of dataset `{name}`, which has {rows} rows, must give it at least one row and less than 1e18"
        ));
    }
    Ok(if let MixAmount::Count(count) = amount { count } else { weight as u64 })
}

fn refuse<T>(problem: String) -> Result<T> {
    Err(Error::Config { key: "mix", problem })
}

#[cfg(test)]
mod tests {
    use super::*;
    use MixAmount::{Count, Proportion, Repeat};

    fn weigh(mix: &[(MixAmount, u64)]) -> Result<Vec<u64>> {
        let rows: Vec<u64> = mix.iter().map(|(_, rows)| *rows).collect();
        compute_weights(
            &(0..).map(|i| format!("d{i}")).zip(mix.iter().map(|(amount, _)| *amount)).collect(),
            &rows,
        )
    }

    #[test]
    fn amounts_become_weights() {
        let thousand_millions = 1_000_000_000;
        for (mix, expected) in [
            (vec![(Proportion(0.7), 10), (Proportion(0.3), 99)], [700, 300].map(|w| w * thousand_millions)),
            (vec![(Proportion(3.0), 10), (Proportion(1.0), 99)], [750, 250].map(|w| w * thousand_millions)),
            (vec![(Repeat(1.0), 10), (Repeat(0.5), 99)], [10, 50]),
            (vec![(Repeat(2.5), 10), (Count(1 << 59), 1)], [25, 1 << 59]),
        ] {
            assert_eq!(weigh(&mix).unwrap(), expected, "{mix:?}");
        }
    }

    #[test]
    fn invalid_amounts_are_refused() {
        for (mix, part) in [
            (vec![(Proportion(0.7), 10), (Repeat(1.0), 99)], "cannot be mixed"),
            (vec![(Repeat(1.0), 10), (Repeat(0.001), 99)], "`repeat` of dataset `d1`, which has 99 rows"),
            (vec![(Proportion(f64::NAN), 10), (Proportion(1.0), 1)], "`proportion` of dataset `d0`"),
            (vec![(Proportion(-1.0), 10), (Proportion(3.0), 1)], "`proportion` of dataset `d0`"),
            (vec![(Proportion(0.0), 10)], "`proportion` of dataset `d0`"),
            (vec![(Count(0), 10)], "`count` of dataset `d0`"),
            (vec![(Count(u64::MAX), 10)], "`count` of dataset `d0`"),
            (vec![(Repeat(f64::INFINITY), 10)], "`repeat` of dataset `d0`"),
            (vec![(Repeat(1.0), 10), (Count(5), 0)], "dataset `d1` has no rows"),
        ] {
            let message = weigh(&mix).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
    }
}
