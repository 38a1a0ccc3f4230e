//! The `[dedup]` settings: which rows count as duplicates.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Largest Hamming distance of perceptual hashes that may count as near. Unrelated images are about
/// 32 apart.
pub(super) const MAX_DISTANCE: u32 = 8;

/// `[dedup]`: what counts as a duplicate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DedupConfig {
    /// Exact duplicates: images with the same encoded bytes.
    pub exact: bool,
    /// Near duplicates: images that look the same.
    pub near: Option<NearConfig>,
}

/// `near = { phash_distance = 3 }`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NearConfig {
    /// The largest number of bits, out of 64, in which the perceptual hashes of near duplicates
    /// differ.
    pub phash_distance: u32,
}

impl DedupConfig {
    /// Whether any kind of duplicate is to be found.
    pub fn is_set(&self) -> bool {
        self.exact || self.near.is_some()
    }

    /// Refuses distances at which unrelated images would count as duplicates.
    ///
    /// # Errors
    /// [`Error::Config`] that names the key.
    pub fn validate(&self) -> Result<()> {
        match self.near {
            Some(near) if near.phash_distance > MAX_DISTANCE => Err(Error::Config {
                key: "dedup.near.phash_distance",
                problem: format!(
                    "{} is more than {MAX_DISTANCE} of 64 bits; unrelated images would be taken for duplicates",
                    near.phash_distance
                ),
            }),
            _ => Ok(()),
        }
    }
}
