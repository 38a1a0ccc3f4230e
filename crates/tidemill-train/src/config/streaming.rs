//! `[train.stream]`: how the stream reads stored datasets.

use std::path::PathBuf;
use std::sync::Arc;

use bytesize::ByteSize;
use serde::{Deserialize, Deserializer, Serialize, de};
use tidemill_store::Cache;
use tidemill_store::stream::UnreadableRows;

use crate::Error;

/// `[train.stream]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StreamingConfig {
    /// Batches that are prefetched.
    pub prefetch: usize,
    /// Reader threads. 0 means two per core, and at least sixteen if any dataset is remote.
    pub readers: usize,
    /// What happens to rows that cannot be read: `stop` ends the run with the file's name, `skip`
    /// leaves them out of their batches and counts them.
    pub unreadable: UnreadableRows,
    /// A folder that caches blocks of remote datasets. Unset: no cache. Several processes may share
    /// it.
    pub cache: Option<PathBuf>,
    /// The most bytes that the cache may hold.
    #[serde(deserialize_with = "parse_bytes")]
    pub cache_bytes: u64,
    /// Seconds without rows after which the run reports a stall.
    pub stall_seconds: u64,
}

impl StreamingConfig {
    /// Opens the cache, if one is configured.
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

/// Parses a number of bytes, or text with a unit.
fn parse_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let wrong = |_| de::Error::custom("must be bytes, such as \"256 GiB\" or 274877906944");
    ByteSize::deserialize(deserializer).map(|bytes| bytes.as_u64()).map_err(wrong)
}
