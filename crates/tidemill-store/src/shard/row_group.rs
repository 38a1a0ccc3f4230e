//! Reads row groups of tensor files, whole or some of their rows, and verifies checksums. Tensors
//! are slices of the row group's memory and are not copied.

use std::hash::Hasher;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use tidemill_io::{Checksum, Location};
use twox_hash::XxHash3_64;

use crate::dataset::unit::UnitId;
use crate::error::{Error, Result};
use crate::shard::buffer_pool::BufferPool;
use crate::shard::footer::BlockEntry;

/// Reads one row group of a tensor file.
#[derive(Debug, Clone, Copy)]
pub struct RowGroupReader<'a> {
    pub location: &'a Location,
    /// The unit whose commit names the file.
    pub unit: UnitId,
    /// Key of the file.
    pub path: &'a str,
    pub entry: &'a BlockEntry,
    /// Bytes of a stored tensor.
    pub width: usize,
}

/// A row group: ids and checksums of its rows, and the tensors if they were read.
#[derive(Debug)]
pub struct RowGroup {
    /// Indices of the rows in `rows.parquet`, ascending.
    pub rows: Vec<u32>,
    /// Sample ids of the rows.
    pub sample_ids: Vec<u64>,
    /// Checksums of the rows.
    sums: Vec<u64>,
    /// The tensors, or `None` if they were not read.
    values: Option<Bytes>,
}

/// Computes the checksum of a row of a tensor file: XXH3-64 of `row`, `sample_id` and the tensor's
/// bytes, little-endian.
pub fn row_checksum(row: u32, sample_id: u64, tensor: &[u8]) -> u64 {
    let mut hasher = row_hasher(row, sample_id);
    hasher.write(tensor);
    hasher.finish()
}

/// A hasher that has consumed all bytes of [`row_checksum`] before the tensor.
fn row_hasher(row: u32, sample_id: u64) -> XxHash3_64 {
    let mut hasher = XxHash3_64::new();
    hasher.write(&row.to_le_bytes());
    hasher.write(&sample_id.to_le_bytes());
    hasher
}

impl RowGroup {
    /// A hasher to write the tensor of row `i` to. [`has_checksum`](Self::has_checksum) then
    /// compares it.
    pub fn row_hasher(&self, i: usize) -> XxHash3_64 {
        row_hasher(self.rows[i], self.sample_ids[i])
    }

    /// Whether a row's hasher has the committed checksum of row `i`.
    pub fn has_checksum(&self, i: usize, seen: &XxHash3_64) -> bool {
        seen.finish() == self.sums[i]
    }
}

impl RowGroupReader<'_> {
    /// Reads and verifies the whole row group into memory of a pool.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it differs from what was committed; a failure of the store.
    pub fn read(self, pool: &Arc<BufferPool>) -> Result<RowGroup> {
        self.parse(&self.fetch(pool)?)
    }

    /// Parses the whole row group from its [fetched](Self::fetch) bytes.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    pub fn parse(self, bytes: &Bytes) -> Result<RowGroup> {
        let values = self.column(bytes, self.entry.values_at, self.width)?;
        Ok(RowGroup { values: Some(values), ..self.parse_head(bytes)? })
    }

    /// Fetches and verifies the bytes of the whole row group.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    pub fn fetch(self, pool: &Arc<BufferPool>) -> Result<Bytes> {
        let mut bytes = pool.buffer(self.entry.bytes as usize);
        let (mut free, mut hasher) = (bytes.bytes_mut(), XxHash3_64::new());
        let range = self.entry.offset..self.entry.offset + self.entry.bytes;
        self.location.stream_range(self.path, range, |piece| {
            // If the store sends more bytes than requested, the checksum differs.
            if let Some((room, rest)) = std::mem::take(&mut free).split_at_mut_checked(piece.len()) {
                room.copy_from_slice(piece);
                free = rest;
            }
            // The piece is still in the processor's cache.
            hasher.write(piece);
        })?;
        match Checksum::from(&hasher) == self.entry.xxh3 {
            true => Ok(Bytes::from_owner(bytes)),
            false => Err(self.corrupt("wrong checksum")),
        }
    }

    /// Reads the whole row group and returns its tensors in order.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    pub fn read_all(self, pool: &Arc<BufferPool>) -> Result<(RowGroup, Vec<Bytes>)> {
        let block = self.read(pool)?;
        let tensors = self.tensors(&block, &(0..block.rows.len()).collect::<Vec<_>>())?;
        Ok((block, tensors))
    }

    /// Reads the row group without its tensors. [`tensors`](Self::tensors) reads them later.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    pub fn read_head(self) -> Result<RowGroup> {
        self.parse_head(&self.read_range(0..u64::from(self.entry.values_at))?)
    }

    /// Returns the tensors of some rows. `at` holds their indices in the row group, ascending.
    /// Tensors that are not in memory are read and verified, neighbours in one request.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    pub fn tensors(self, row_group: &RowGroup, at: &[usize]) -> Result<Vec<Bytes>> {
        let width = self.width;
        if let Some(values) = &row_group.values {
            return Ok(at.iter().map(|i| values.slice(i * width..(i + 1) * width)).collect());
        }
        let mut tensors = Vec::with_capacity(at.len());
        for run in at.chunk_by(|a, b| a + 1 == *b) {
            let start = u64::from(self.entry.values_at) + (run[0] * width) as u64;
            let bytes = self.read_range(start..start + (run.len() * width) as u64)?;
            for (i, row) in run.iter().enumerate() {
                let tensor = bytes.slice(i * width..(i + 1) * width);
                self.verify(row_group, *row, &tensor)?;
                tensors.push(tensor);
            }
        }
        Ok(tensors)
    }

    /// Verifies the tensor of row `i`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it differs from what was committed.
    pub fn verify(self, row_group: &RowGroup, i: usize, tensor: &[u8]) -> Result<()> {
        match row_checksum(row_group.rows[i], row_group.sample_ids[i], tensor) == row_group.sums[i] {
            true => Ok(()),
            false => Err(self.corrupt(&format!("wrong checksum of row {i}"))),
        }
    }

    /// Returns the tensor of row `i`, like [`tensors`](Self::tensors).
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    pub fn tensor(self, row_group: &RowGroup, i: usize) -> Result<Bytes> {
        self.tensors(row_group, &[i]).map(|mut tensors| tensors.swap_remove(0))
    }

    /// Parses the columns before the tensors from the beginning of the row group.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if `bytes` is too short.
    pub fn parse_head(self, bytes: &Bytes) -> Result<RowGroup> {
        let entry = self.entry;
        let numbers = |at| -> Result<Vec<u64>> {
            let bytes = self.column(bytes, at, 8)?;
            Ok(bytes.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect())
        };
        let rows = self.column(bytes, entry.row_at, 4)?;
        Ok(RowGroup {
            rows: rows.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect(),
            sample_ids: numbers(entry.sample_id_at)?,
            sums: numbers(entry.xxh3_at)?,
            values: None,
        })
    }

    /// The values of a column, each of `width` bytes.
    fn column(self, bytes: &Bytes, at: u32, width: usize) -> Result<Bytes> {
        let values = at as usize..at as usize + self.entry.rows as usize * width;
        if values.end > bytes.len() {
            return Err(self.corrupt("its footer names offsets beyond its end"));
        }
        Ok(bytes.slice(values))
    }

    /// Reads a byte range of the row group.
    fn read_range(self, range: Range<u64>) -> Result<Bytes> {
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
