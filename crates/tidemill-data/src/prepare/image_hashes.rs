//! Hashes of a row's image: of its encoded bytes and of its pixels. They are computed, and become columns, only when
//! something asks for them.

use std::sync::Arc;

use arrow::array::{ArrayRef, FixedSizeBinaryBuilder, UInt64Array};
use arrow::datatypes::{DataType, Field};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::error::Result;

/// Which hashes are wanted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Wanted {
    /// The column `sha256`.
    pub sha256: bool,
    /// The column `phash`.
    pub phash: bool,
}

/// A row's hashes; those that are not wanted or not reached stay unknown.
#[derive(Debug, Clone, Copy, Default)]
pub struct Hashes {
    /// SHA-256 of the encoded image.
    pub sha256: Option<[u8; 32]>,
    /// [`crate::perceptual_hash::phash`] of the decoded image.
    pub phash: Option<u64>,
}

/// SHA-256.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

impl Wanted {
    /// The columns' fields.
    pub fn fields(self) -> impl Iterator<Item = Field> {
        let sha256 = self.sha256.then(|| Field::new("sha256", DataType::FixedSizeBinary(32), true));
        let phash = self.phash.then(|| Field::new("phash", DataType::UInt64, true));
        sha256.into_iter().chain(phash)
    }

    /// The columns.
    ///
    /// # Errors
    /// If Arrow refuses to build them.
    pub fn columns(self, rows: impl Iterator<Item = Hashes> + Clone) -> Result<Vec<ArrayRef>> {
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
