//! The footer of a tensor file, which says where the row groups are. The metadata of the footer
//! holds them as JSON under the key `blocks`. So manifests stay small however many row groups there
//! are, and a reader of a row needs the footer of one file only.

use parquet::file::metadata::ParquetMetaDataReader;
use serde::{Deserialize, Serialize};
use tidemill_io::{Checksum, Location};

use crate::dataset::commit::Footer;
use crate::dataset::unit::UnitId;
use crate::error::{Error, Result};

/// Metadata key of the row groups.
pub const BLOCKS: &str = "blocks";

/// Bytes after the metadata of a footer: the length of the metadata, and `PAR1`.
const END: usize = 8;

/// A row group of a tensor file. Its four columns are PLAIN, uncompressed, without nulls and one
/// page each, so that their values can be read from the object without any Parquet code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockEntry {
    /// Number of the block. Blocks with the same number in the files of one split and unit hold
    /// rows of the same range of the input.
    pub number: u32,
    /// Number of rows.
    pub rows: u32,
    /// Start of the row group in the object, in bytes.
    pub offset: u64,
    /// Size of the row group in bytes.
    pub bytes: u64,
    /// Offset of the values of `row` (u32) from the start of the row group, in bytes.
    pub row_at: u32,
    /// Offset of the values of `sample_id` (u64), in bytes.
    pub sample_id_at: u32,
    /// Offset of the checksums of the rows (u64), in bytes.
    pub xxh3_at: u32,
    /// Offset of the tensors, in bytes. They reach to the end of the row group.
    pub values_at: u32,
    /// Checksum of the bytes of the row group.
    pub xxh3: Checksum,
}

/// Reads the row groups of a unit's file from its footer, in order.
///
/// # Errors
/// [`Error::Corrupt`] if the footer differs from what was committed; a failure of the store.
pub fn read_blocks(footer: &Footer, location: &Location, unit: UnitId) -> Result<Vec<BlockEntry>> {
    let corrupt = |problem: String| Error::Corrupt {
        path: location.uri_of(&footer.path),
        problem: format!("footer: {problem}"),
        commit: unit.commit_key(),
    };
    let bytes = location.get_range(&footer.path, footer.range.clone())?;
    if Checksum::compute(&bytes) != footer.xxh3 {
        return Err(corrupt("wrong checksum".into()));
    }
    let metadata = bytes.get(..bytes.len().saturating_sub(END)).unwrap_or_default();
    let metadata = ParquetMetaDataReader::decode_metadata(metadata).map_err(|e| corrupt(e.to_string()))?;
    let pairs = metadata.file_metadata().key_value_metadata();
    let blocks = pairs.into_iter().flatten().find(|pair| pair.key == BLOCKS);
    let blocks = blocks.and_then(|pair| pair.value.as_deref());
    let blocks = blocks.ok_or_else(|| corrupt("its metadata has no `blocks`".into()))?;
    serde_json::from_str(blocks).map_err(|e| corrupt(e.to_string()))
}

/// The size of the footer at the end of a Parquet file, or `None` if `end` is not the end of one.
pub fn footer_bytes(end: &[u8]) -> Option<u32> {
    let (_, end) = end.split_last_chunk::<END>()?;
    let (length, magic) = end.split_first_chunk()?;
    (magic == b"PAR1").then(|| u32::from_le_bytes(*length).checked_add(END as u32))?
}
