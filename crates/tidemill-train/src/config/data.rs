//! `[train.stream]` and `[[train.mix]]`: the datasets, and how they are read.

use std::path::PathBuf;
use std::sync::Arc;

use bytesize::ByteSize;
use serde::{Deserialize, Deserializer, Serialize, de};
use tidemill_store::Cache;
use tidemill_store::stream::{MixAmount, UnreadableRows};

use crate::Error;

/// `[train.stream]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StreamingConfig {
    /// Batches made ahead.
    pub prefetch: usize,
    /// Threads that read; 0 means two per core, and at least sixteen if any dataset is not on this machine.
    pub readers: usize,
    /// What becomes of rows that cannot be read: `stop` ends the run with the file's name, `skip` leaves them out of their
    /// batches and counts them.
    pub unreadable: UnreadableRows,
    /// A folder for row groups of datasets that are not on this machine; unset: none are kept. Several processes may share
    /// it.
    pub cache: Option<PathBuf>,
    /// What the folder may hold, in bytes.
    #[serde(deserialize_with = "bytes")]
    pub cache_bytes: u64,
    /// Seconds of waiting for rows after which that is said.
    pub stall_seconds: u64,
}

impl StreamingConfig {
    /// The cache, if there is to be one.
    ///
    /// # Errors
    /// If its folder cannot be written to.
    pub(crate) fn open_cache(&self) -> Result<Option<Arc<Cache>>, Error> {
        Ok(self.cache.as_ref().map(|folder| Cache::open(folder, self.cache_bytes)).transpose()?)
    }
}

impl Default for StreamingConfig {
    fn default() -> Self {
        Self {
            prefetch: 4,
            readers: 0,
            unreadable: UnreadableRows::Stop,
            cache: None,
            cache_bytes: 256 << 30,
            stall_seconds: 30,
        }
    }
}

/// A number, or text with a unit.
fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let wrong = |_| de::Error::custom("must be bytes, such as \"256 GiB\" or 274877906944");
    ByteSize::deserialize(deserializer).map(|bytes| bytes.as_u64()).map_err(wrong)
}

/// `[[train.mix]]`: a dataset and how much of it. One of `proportion`, `repeat` and `count` is given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MixConfig {
    /// The name that its order and its turns depend on.
    pub name: String,
    /// Path or URI of the dataset; unset: the run's own.
    #[serde(default)]
    pub dataset: Option<String>,
    /// Its share of all rows, as a weight beside those of the other datasets.
    #[serde(default)]
    pub proportion: Option<f64>,
    /// How often its rows come in an epoch of the mix.
    #[serde(default)]
    pub repeat: Option<f64>,
    /// Rows in an epoch of the mix.
    #[serde(default)]
    pub count: Option<u64>,
}

impl MixConfig {
    /// How much of the dataset; `None` unless exactly one amount is given.
    pub fn amount(&self) -> Option<MixAmount> {
        match (self.proportion, self.repeat, self.count) {
            (Some(weight), None, None) => Some(MixAmount::Proportion(weight)),
            (None, Some(times), None) => Some(MixAmount::Repeat(times)),
            (None, None, Some(rows)) => Some(MixAmount::Count(rows)),
            _ => None,
        }
    }
}
