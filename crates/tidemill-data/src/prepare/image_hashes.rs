//! Hashes of a row's image: SHA-256 of the encoded bytes and the perceptual hash of the pixels.
//! They are computed and become columns only if something needs them.

use std::sync::Arc;

use arrow::array::{ArrayRef, FixedSizeBinaryBuilder, UInt64Array};
use arrow::datatypes::{DataType, Field};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::error::Result;

/// Which hashes are computed and written as columns. The fields enter a digest, so they must keep
/// their names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct HashColumns {
    /// The column `sha256`.
    pub sha256: bool,
    /// The column `phash`.
    pub phash: bool,
}

/// The hashes of an image, as far as they are known.
#[derive(Debug, Clone, Copy, Default)]
pub struct ImageHashes {
    /// SHA-256 of the encoded image.
    pub sha256: Option<[u8; 32]>,
    /// [`crate::perceptual_hash::phash`] of the decoded image.
    pub phash: Option<u64>,
}

/// Computes the SHA-256 of an encoded image.
pub fn compute_sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

impl HashColumns {
    /// The fields of the columns.
    pub fn fields(self) -> impl Iterator<Item = Field> {
        let sha256 = self.sha256.then(|| Field::new("sha256", DataType::FixedSizeBinary(32), true));
        let phash = self.phash.then(|| Field::new("phash", DataType::UInt64, true));
        sha256.into_iter().chain(phash)
    }

    /// Builds the columns.
    ///
    /// # Errors
    /// If Arrow refuses to build them.
    pub fn columns(self, rows: impl Iterator<Item = ImageHashes> + Clone) -> Result<Vec<ArrayRef>> {
        let mut columns: Vec<ArrayRef> = Vec::new();
        if self.sha256 {
            let mut digests = FixedSizeBinaryBuilder::new(32);
            for row in rows.clone() {
                match row.sha256 {
                    Some(digest) => digests.append_value(digest)?,
                    None => digests.append_null(),
                }
            }
            columns.push(Arc::new(digests.finish()));
        }
        if self.phash {
            columns.push(Arc::new(rows.map(|row| row.phash).collect::<UInt64Array>()));
        }
        Ok(columns)
    }
}
