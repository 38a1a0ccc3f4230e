//! Reads blocks: row groups of tensor files, whole or only some rows of them, verified against their checksums. The
//! values lie in the block as they are handed on.

use std::hash::Hasher;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use tidemill_io::{Checksum, Location};
use twox_hash::XxHash3_64;

use crate::dataset::unit::UnitId;
use crate::error::{Error, Result};
use crate::shard::buffer::Pool;
use crate::shard::footer::BlockEntry;

/// Where a row group lies.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    pub location: &'a Location,
    /// Whose commit names the file.
    pub unit: UnitId,
    /// The file's key.
    pub path: &'a str,
    pub entry: &'a BlockEntry,
    /// Bytes of a tensor.
    pub width: usize,
}

/// What a row group holds but for its tensors, and where these are.
#[derive(Debug)]
pub struct Block {
    /// Indices into `rows.parquet`, ascending.
    pub rows: Vec<u32>,
    /// The samples.
    pub sample_ids: Vec<u64>,
    /// Checksums of the rows.
    sums: Vec<u64>,
    /// The tensors, if they are in memory.
    values: Option<Bytes>,
}

/// The checksum of a row of a tensor file: XXH3-64 of `row`, `sample_id` and the tensor's bytes, little-endian.
pub fn row_checksum(row: u32, sample_id: u64, tensor: &[u8]) -> u64 {
    let mut hasher = row_hasher(row, sample_id);
    hasher.write(tensor);
    hasher.finish()
}

/// What has seen all of [`row_checksum`]'s bytes but the tensor's.
fn row_hasher(row: u32, sample_id: u64) -> XxHash3_64 {
    let mut hasher = XxHash3_64::new();
    hasher.write(&row.to_le_bytes());
    hasher.write(&sample_id.to_le_bytes());
    hasher
}

impl Block {
    /// What the tensor of a row is to be written to, for [`is_row`](Self::is_row).
    pub fn row_hasher(&self, i: usize) -> XxHash3_64 {
        row_hasher(self.rows[i], self.sample_ids[i])
    }

    /// Whether what a row's hasher has seen is what was committed.
    pub fn is_row(&self, i: usize, seen: &XxHash3_64) -> bool {
        seen.finish() == self.sums[i]
    }
}

impl Place<'_> {
    /// Reads and verifies the whole row group, into memory of a pool.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is not what was committed; a failure of the store.
    pub fn read(self, pool: &Arc<Pool>) -> Result<Block> {
        self.block(&self.fetch(pool)?)
    }

    /// The whole row group, whose [fetched](Self::fetch) bytes these are.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn block(self, bytes: &Bytes) -> Result<Block> {
        let values = self.part(bytes, self.entry.values_at, self.width)?;
        Ok(Block { values: Some(values), ..self.head(bytes)? })
    }

    /// The bytes of the whole row group, verified.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn fetch(self, pool: &Arc<Pool>) -> Result<Bytes> {
        let mut bytes = pool.buffer(self.entry.bytes as usize);
        let (mut free, mut hasher) = (bytes.bytes_mut(), XxHash3_64::new());
        let range = self.entry.offset..self.entry.offset + self.entry.bytes;
        self.location.get_pieces(self.path, range, |piece| {
            // If more came than was asked for, the checksum tells.
            if let Some((room, rest)) = std::mem::take(&mut free).split_at_mut_checked(piece.len()) {
                room.copy_from_slice(piece);
                free = rest;
            }
            // Now it is in the processor's cache.
            hasher.write(piece);
        })?;
        match Checksum::from(&hasher) == self.entry.xxh3 {
            true => Ok(Bytes::from_owner(bytes)),
            false => Err(self.corrupt("wrong checksum")),
        }
    }

    /// Reads the whole row group, and gives its tensors in their order.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_all(self, pool: &Arc<Pool>) -> Result<(Block, Vec<Bytes>)> {
        let block = self.read(pool)?;
        let tensors = self.tensors(&block, &(0..block.rows.len()).collect::<Vec<_>>())?;
        Ok((block, tensors))
    }

    /// Reads the row group without its tensors, which [`tensors`](Self::tensors) then reads.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_head(self) -> Result<Block> {
        self.head(&self.range(0..u64::from(self.entry.values_at))?)
    }

    /// The tensors of some rows of a block that was read from here, given by their places in it, ascending. Those that
    /// are not in memory are read, neighbours together, and verified.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn tensors(self, block: &Block, at: &[usize]) -> Result<Vec<Bytes>> {
        let width = self.width;
        if let Some(values) = &block.values {
            return Ok(at.iter().map(|i| values.slice(i * width..(i + 1) * width)).collect());
        }
        let mut tensors = Vec::with_capacity(at.len());
        for run in at.chunk_by(|a, b| a + 1 == *b) {
            let start = u64::from(self.entry.values_at) + (run[0] * width) as u64;
            let bytes = self.range(start..start + (run.len() * width) as u64)?;
            for (i, row) in run.iter().enumerate() {
                let tensor = bytes.slice(i * width..(i + 1) * width);
                self.verify(block, *row, &tensor)?;
                tensors.push(tensor);
            }
        }
        Ok(tensors)
    }

    /// Verifies the tensor of a row.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is not what was committed.
    pub fn verify(self, block: &Block, i: usize, tensor: &[u8]) -> Result<()> {
        match row_checksum(block.rows[i], block.sample_ids[i], tensor) == block.sums[i] {
            true => Ok(()),
            false => Err(self.corrupt(&format!("wrong checksum of row {i}"))),
        }
    }

    /// The tensor of a row, as [`tensors`](Self::tensors).
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn tensor(self, block: &Block, i: usize) -> Result<Bytes> {
        self.tensors(block, &[i]).map(|mut tensors| tensors.swap_remove(0))
    }

    /// The columns before the tensors, which are at the beginning of `bytes`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if there are fewer.
    pub fn head(self, bytes: &Bytes) -> Result<Block> {
        let entry = self.entry;
        let numbers = |at| -> Result<Vec<u64>> {
            let bytes = self.part(bytes, at, 8)?;
            Ok(bytes.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect())
        };
        let rows = self.part(bytes, entry.row_at, 4)?;
        Ok(Block {
            rows: rows.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect(),
            sample_ids: numbers(entry.sample_id_at)?,
            sums: numbers(entry.xxh3_at)?,
            values: None,
        })
    }

    /// The values of a column, each of `width` bytes.
    fn part(self, bytes: &Bytes, at: u32, width: usize) -> Result<Bytes> {
        let values = at as usize..at as usize + self.entry.rows as usize * width;
        if values.end > bytes.len() {
            return Err(self.corrupt("its commit names places beyond its end"));
        }
        Ok(bytes.slice(values))
    }

    /// Some bytes of the row group.
    fn range(self, range: Range<u64>) -> Result<Bytes> {
        let start = self.entry.offset;
        let bytes = self.location.get_range(self.path, start + range.start..start + range.end)?;
        if bytes.len() as u64 != range.end - range.start {
            return Err(self.corrupt("the file ends before it does"));
        }
        Ok(bytes)
    }

    fn corrupt(self, problem: &str) -> Error {
        Error::Corrupt {
            path: self.location.uri_of(self.path),
            problem: format!("row group at byte {}: {problem}", self.entry.offset),
            commit: self.unit.commit_key(),
        }
    }
}
