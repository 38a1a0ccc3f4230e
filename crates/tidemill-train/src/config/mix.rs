//! `[[train.mix]]`: the datasets of a run, and how much of each it uses.

use serde::{Deserialize, Serialize};
use tidemill_store::stream::MixAmount;

/// `[[train.mix]]`: a dataset and how much of it is used. Exactly one of `proportion`,
/// `repeat` and `count` is given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MixConfig {
    /// The dataset's name in the mix. The order of its rows and their interleaving with other
    /// datasets depend on it.
    pub name: String,
    /// Path or URI of the dataset. Unset: the run's own.
    #[serde(default)]
    pub dataset: Option<String>,
    /// The dataset's share of all rows, as a weight relative to those of the other datasets.
    #[serde(default)]
    pub proportion: Option<f64>,
    /// How often its rows are used in an epoch of the mix.
    #[serde(default)]
    pub repeat: Option<f64>,
    /// Rows in an epoch of the mix.
    #[serde(default)]
    pub count: Option<u64>,
}

impl MixConfig {
    /// How much of the dataset is used; `None` unless exactly one amount is given.
    pub fn amount(&self) -> Option<MixAmount> {
        match (self.proportion, self.repeat, self.count) {
            (Some(weight), None, None) => Some(MixAmount::Proportion(weight)),
            (None, Some(times), None) => Some(MixAmount::Repeat(times)),
            (None, None, Some(rows)) => Some(MixAmount::Count(rows)),
            _ => None,
        }
    }
}
