//! A shard in memory. Its content is checked before it is used: any bytes give samples or an error.

use std::io::Read;

use bytes::Bytes;

use super::index::{Column, FileInfo, ShardInfo};

/// The samples of a shard.
#[derive(Debug, Clone)]
pub struct Shard {
    bytes: Bytes,
    columns: Vec<Column>,
    /// The start of each sample, and the end of the last one.
    offsets: Vec<u32>,
}

impl Shard {
    /// Reads a shard from the content of one of its files. Also returns whether any hash was
    /// compared.
    ///
    /// # Errors
    /// A message that says what is wrong with the shard.
    pub fn read(info: &ShardInfo, file: &FileInfo, content: Bytes) -> Result<(Self, bool), String> {
        let mut compared = file.check(&content)?;
        let raw = if Some(file) == info.zip_data.as_ref() {
            let raw = decompress(&content, info.raw_data.bytes)?;
            compared |= info.raw_data.check(&raw).map_err(|problem| format!("decompressed, it {problem}"))?;
            raw
        } else {
            content
        };
        Ok((Self::parse(raw, info.columns(), info.samples)?, compared))
    }

    /// Parses a raw shard that must hold `samples` samples.
    ///
    /// # Errors
    /// A message that says what is wrong with the shard.
    pub fn parse(bytes: Bytes, columns: Vec<Column>, samples: u32) -> Result<Self, String> {
        let (count, table) = bytes.split_first_chunk().ok_or("ends before the number of its samples")?;
        let count = u32::from_le_bytes(*count);
        if count != samples {
            return Err(format!("has {count} samples, but its index says {samples}"));
        }
        let entries = samples as usize + 1;
        let (table, _) = table.as_chunks::<4>();
        let table = table.get(..entries).ok_or("ends within the table of its samples' offsets")?;
        let offsets: Vec<u32> = table.iter().map(|entry| u32::from_le_bytes(*entry)).collect();
        let begins = offsets.first().is_some_and(|first| *first as usize >= 4 + 4 * entries);
        let ends = offsets.last().is_some_and(|last| *last as usize == bytes.len());
        if !begins || !ends || !offsets.is_sorted() {
            return Err("has a damaged table of its samples' offsets".into());
        }
        Ok(Self { bytes, columns, offsets })
    }

    /// The columns, in the order of a sample's values.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Number of samples.
    pub fn len(&self) -> u32 {
        self.offsets.len() as u32 - 1
    }

    /// Whether the shard has no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The values of sample `i`, one for each column.
    ///
    /// # Errors
    /// If there is no such sample, or the sizes of its columns do not add up to its size.
    pub fn sample(&self, i: u32) -> Result<Vec<&[u8]>, String> {
        let range = self
            .offsets
            .get(i as usize..)
            .and_then(|rest| Some(*rest.first()? as usize..*rest.get(1)? as usize));
        let mut rest = range.and_then(|range| self.bytes.get(range)).ok_or(format!("has no sample {i}"))?;
        let damaged = || format!("is damaged: the sizes of sample {i} do not add up");
        let mut sizes = Vec::with_capacity(self.columns.len());
        for column in &self.columns {
            sizes.push(match column.size {
                Some(size) => size,
                None => {
                    let size =
                        rest.split_off(..4).and_then(|size| size.try_into().ok()).ok_or_else(damaged)?;
                    u32::from_le_bytes(size)
                }
            } as usize);
        }
        let values = sizes.into_iter().map(|size| rest.split_off(..size).ok_or_else(damaged));
        let values = values.collect::<Result<Vec<_>, _>>()?;
        if rest.is_empty() { Ok(values) } else { Err(damaged()) }
    }
}

/// Decompresses to `size` bytes. Stops soon after that, so that a damaged file cannot fill the
/// memory.
fn decompress(content: &[u8], size: u64) -> Result<Bytes, String> {
    let failed = |e: std::io::Error| format!("is not an intact zstd file: {e}");
    let mut raw = Vec::with_capacity(size.min(8 * content.len() as u64) as usize);
    let decoder = zstd::Decoder::with_buffer(content).map_err(failed)?;
    decoder.take(size + 1).read_to_end(&mut raw).map_err(failed)?;
    Ok(raw.into())
}
