//! The `[dedup]` settings: which rows count as duplicates.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Largest Hamming distance of perceptual hashes that may count as near. Unrelated images are about
/// 32 apart.
pub(super) const MAX_DISTANCE: u32 = 8;

/// Least cosine of embeddings that may count as similar. Of CLIP's, unrelated images reach 0.5.
const MIN_COSINE: f64 = 0.6;

/// `[dedup]`: what counts as a duplicate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DedupConfig {
    /// Exact duplicates: images with the same encoded bytes.
    pub exact: bool,
    /// Near duplicates: images that look the same.
    pub near: Option<NearConfig>,
    /// Similar images, by what a network sees in them.
    pub similar: Option<SimilarConfig>,
}

/// `near = { phash_distance = 3 }`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NearConfig {
    /// The largest number of bits, out of 64, in which the perceptual hashes of near duplicates
    /// differ.
    pub phash_distance: u32,
}

/// `similar = { cosine = 0.95 }`
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimilarConfig {
    /// The least cosine of the embeddings of duplicates.
    pub cosine: f64,
}

impl DedupConfig {
    /// Whether any kind of duplicate is to be found.
    pub fn is_set(&self) -> bool {
        self.exact || self.near.is_some() || self.similar.is_some()
    }

    /// Refuses distances and cosines at which unrelated images would count as duplicates.
    ///
    /// # Errors
    /// [`Error::Config`] that names the key.
    pub fn validate(&self) -> Result<()> {
        if let Some(similar) = self.similar.filter(|similar| !(MIN_COSINE..=1.0).contains(&similar.cosine)) {
            return Err(Error::Config {
                key: "dedup.similar.cosine",
                problem: format!("{} is not between {MIN_COSINE} and 1", similar.cosine),
            });
        }
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
