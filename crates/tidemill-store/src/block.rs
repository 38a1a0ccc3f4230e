//! Reads blocks: row groups of tensor files, each with one request, verified against its checksum. The values
//! lie in the block as they are handed on.

use bytes::Bytes;
use tidemill_io::{Checksum, Location};

use crate::commit::{BlockEntry, FileEntry, UnitId};
use crate::error::{Error, Result};

/// A row group of a tensor file in memory.
#[derive(Debug)]
pub struct Block {
    /// Indices into `rows.parquet`, ascending.
    pub rows: Vec<u32>,
    /// The samples.
    pub sample_ids: Vec<u64>,
    values: Bytes,
    width: usize,
}

impl Block {
    /// Reads and verifies a block of a file that `unit`'s commit names, whose tensors have `width` bytes each.
    pub fn read(
        location: &Location,
        unit: &UnitId,
        file: &FileEntry,
        entry: &BlockEntry,
        width: usize,
    ) -> Result<Self> {
        let corrupt = |problem: &str| Error::Corrupt {
            path: location.uri_of(&file.path),
            problem: format!("row group at byte {}: {problem}", entry.offset),
            commit: unit.commit_key(),
        };
        let bytes = location.get_range(&file.path, entry.offset..entry.offset + entry.bytes)?;
        if bytes.len() as u64 != entry.bytes || Checksum::of(&bytes) != entry.xxh3 {
            return Err(corrupt("wrong checksum"));
        }
        let n = entry.rows as usize;
        let part = |at: u32, width: usize| {
            let start = at as usize;
            (start + n * width <= bytes.len()).then(|| bytes.slice(start..start + n * width))
        };
        let parts = (part(entry.row_at, 4), part(entry.sample_id_at, 8), part(entry.values_at, width));
        let (Some(rows), Some(sample_ids), Some(values)) = parts else {
            return Err(corrupt("its commit names places beyond its end"));
        };
        Ok(Self {
            rows: rows.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect(),
            sample_ids: sample_ids.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect(),
            values,
            width,
        })
    }

    /// The bytes of tensor `i`.
    pub fn tensor(&self, i: usize) -> &[u8] {
        &self.values[i * self.width..(i + 1) * self.width]
    }
}

/// A block of latents and the block of text that its rows are joined with.
#[derive(Debug)]
pub struct Joined {
    latents: Block,
    text: Block,
    /// For each row of `latents` its place in `text`.
    text_at: Vec<u32>,
}

impl Joined {
    /// Joins by `row`; `None` if a row has no text.
    pub fn new(latents: Block, text: Block) -> Option<Self> {
        let mut rest = text.rows.iter().zip(0u32..);
        let text_at = latents.rows.iter().map(|row| rest.find(|(other, _)| *other == row).map(|(_, i)| i));
        let text_at = text_at.collect::<Option<_>>()?;
        Some(Self { latents, text, text_at })
    }

    /// Sample id, latents and text of a row.
    pub fn row(&self, i: usize) -> (u64, &[u8], &[u8]) {
        (self.latents.sample_ids[i], self.latents.tensor(i), self.text.tensor(self.text_at[i] as usize))
    }

    /// Rows.
    pub fn len(&self) -> usize {
        self.text_at.len()
    }
}
