//! The trait that all sources implement.

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use crate::error::Result;
use crate::source::units::{InputFile, InputUnit};

/// The batches of a unit, in row order.
pub type Batches = Box<dyn Iterator<Item = Result<RecordBatch>> + Send>;

/// Encoded bytes after which a batch ends, and the default limit of prefetched bytes. A single
/// image may exceed them.
pub const MAX_BATCH_BYTES: u64 = 64 << 20;

/// A source of image-caption pairs.
///
/// Batches have the columns that the configuration needs, under their own names. In front of them
/// are `sample_id` and `source_row` (UInt64) and the key column (Utf8, never null; named `key` if
/// the source has none); at the end there may be [`SOURCE_ERROR`](crate::source::SOURCE_ERROR).
/// `source_row` is the row's index in a Parquet file, the sample's index in a tar, and the offset
/// of a line's first byte in a text file: unique in its file, ascending, and independent of how the
/// file is split.
pub trait Source: Send + Sync {
    /// The files, ordered as the configuration lists them, and by URI within one glob.
    fn files(&self) -> &[InputFile];

    /// The schema of every batch.
    fn schema(&self) -> SchemaRef;

    /// Splits all files into units, in order. All files are checked, so that a broken one is
    /// reported before the run starts.
    ///
    /// # Errors
    /// If a file is unreadable or lacks a column, or if there are no rows.
    fn units(&self) -> Result<Vec<InputUnit>>;

    /// Reads a unit. Only the needed columns and rows are fetched. A batch has about `max_bytes` at
    /// most, and as many bytes may be prefetched, besides [`InputUnit::resident_bytes`]. Only a
    /// single image may be larger.
    ///
    /// # Errors
    /// If the file cannot be opened. Each batch may fail later.
    fn read_with_memory(&self, unit: &InputUnit, max_bytes: u64) -> Result<Batches>;

    /// Reads a unit with the default limit for batches.
    ///
    /// # Errors
    /// As for [`read_with_memory`](Self::read_with_memory).
    fn read(&self, unit: &InputUnit) -> Result<Batches> {
        self.read_with_memory(unit, MAX_BATCH_BYTES)
    }

    /// Splits a unit into ranges of about one batch that can be read on their own. A container that
    /// can only be read from its start gives the unit itself.
    fn split_unit(&self, unit: &InputUnit) -> Vec<InputUnit> {
        vec![unit.clone()]
    }

    /// Reads a unit with nulls in place of images; `None` if the container cannot be read without
    /// its images.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    fn read_without_images(&self, _unit: &InputUnit) -> Result<Option<Batches>> {
        Ok(None)
    }
}
