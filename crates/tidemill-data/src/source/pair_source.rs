//! The trait of all sources.

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use crate::error::Result;
use crate::source::units::{InputFile, InputUnit};

/// The batches of one unit, in row order.
pub type Batches = Box<dyn Iterator<Item = Result<RecordBatch>> + Send>;

/// Encoded bytes after which a batch ends, however few its rows are, and most of what is read ahead, unless less is
/// allowed. One image may exceed them.
pub const BATCH_BYTES: u64 = 64 << 20;

/// A place that pairs come from.
///
/// Batches hold the columns that the configuration needs, each under its own name, with `sample_id` and `source_row`
/// (UInt64) and the key column (Utf8, never null; named `key` if the source has none) in front, and perhaps
/// [`SOURCE_ERROR`](crate::source::SOURCE_ERROR) at the end. `source_row` is the row's index in a Parquet file, the sample's in a tar, and the
/// offset of a line's first byte in a text file: unique in its file, ascending, and the same however it is cut.
pub trait Source: Send + Sync {
    /// The files, ordered as the configuration lists them and by URI within one glob.
    fn files(&self) -> &[InputFile];

    /// The schema of every batch.
    fn schema(&self) -> SchemaRef;

    /// Cuts all files into units, in order. Checks every file on the way, so that a broken one is refused before the
    /// run starts.
    ///
    /// # Errors
    /// If a file is unreadable or lacks a column, or if there are no rows at all.
    fn units(&self) -> Result<Vec<InputUnit>>;

    /// Reads one unit, fetching only the columns and rows that it needs. A batch has about `room` bytes at most, and as
    /// many may be read ahead of it, beside [`InputUnit::held`]. More than this only one image may have.
    ///
    /// # Errors
    /// If the file cannot be opened; each batch may fail on its own later.
    fn read_within(&self, unit: &InputUnit, room: u64) -> Result<Batches>;

    /// As [`read_within`](Self::read_within), with room for large batches.
    ///
    /// # Errors
    /// As [`read_within`](Self::read_within).
    fn read(&self, unit: &InputUnit) -> Result<Batches> {
        self.read_within(unit, BATCH_BYTES)
    }

    /// A unit cut into stretches of about a batch, each of which can be read alone; the unit itself where its container can only
    /// be read from its beginning.
    fn stretches(&self, unit: &InputUnit) -> Vec<InputUnit> {
        vec![unit.clone()]
    }

    /// As [`read`](Self::read), with nulls for the images, if the container can be read without fetching them.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn read_without_images(&self, _unit: &InputUnit) -> Result<Option<Batches>> {
        Ok(None)
    }
}
