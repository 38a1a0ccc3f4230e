//! The rows of a dataset as deduplication sees them: sample id, hashes and area.

use std::cmp::Reverse;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{UInt32Type, UInt64Type};

use crate::dataset::reader::Dataset;
use crate::error::{Error, Result};

/// The columns that deduplication reads.
const COLUMNS: [&str; 6] = ["sample_id", "width", "height", "status", "sha256", "phash"];

/// The hashes of a kept row: 32 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Sample id of the row.
    pub sample_id: u64,
    /// The first 64 bits of the SHA-256 of the encoded image. Among n images, two different ones
    /// collide with a probability of about n^2 / 2^65.
    pub sha256: u64,
    /// Perceptual hash of the image.
    pub phash: u64,
    /// Area of the image, width x height in pixels.
    pub area: u32,
}

impl Row {
    /// Order of preference: large images first, then small sample ids.
    pub(super) fn preference(&self) -> (Reverse<u32>, u64) {
        (Reverse(self.area), self.sample_id)
    }
}

/// Reads the kept rows of a dataset with their hashes.
///
/// # Errors
/// [`Error::Config`] if the rows have no hashes; a file that cannot be read.
pub fn read_rows(dataset: &Dataset) -> Result<Vec<Row>> {
    let mut rows = Vec::with_capacity(usize::try_from(dataset.totals()?.rows.kept).unwrap_or(0));
    for batch in dataset.read_rows(&COLUMNS) {
        let batch = batch?;
        let columns = Columns::new(&batch).ok_or_else(|| Error::Config {
            key: "dedup",
            problem: "the dataset's rows have no hashes; set prepare.hashes = true and preprocess again"
                .into(),
        })?;
        for row in 0..batch.num_rows() {
            rows.extend(columns.row(row)?);
        }
    }
    Ok(rows)
}

struct Columns<'a> {
    batch: &'a RecordBatch,
}

impl<'a> Columns<'a> {
    fn new(batch: &'a RecordBatch) -> Option<Self> {
        let fits = batch.column_by_name("sha256")?.as_fixed_size_binary_opt()?.value_length() == 32;
        batch.column_by_name("phash")?.as_primitive_opt::<UInt64Type>()?;
        fits.then_some(Self { batch })
    }

    /// The row at an index, or `None` if it is not kept.
    fn row(&self, row: usize) -> Result<Option<Row>> {
        let malformed =
            |column: &str| Error::Column { column: column.into(), problem: "is missing or malformed".into() };
        let column = |name: &str| self.batch.column_by_name(name).ok_or_else(|| malformed(name));
        let number = |name: &str| {
            let values = column(name)?.as_primitive_opt::<UInt64Type>().filter(|values| values.is_valid(row));
            values.map(|values| values.value(row)).ok_or_else(|| malformed(name))
        };
        let side = |name: &str| {
            let values = column(name)?.as_primitive_opt::<UInt32Type>().filter(|values| values.is_valid(row));
            values.map(|values| values.value(row)).ok_or_else(|| malformed(name))
        };
        if column("status")?.as_string_opt::<i32>().is_none_or(|status| status.value(row) != "kept") {
            return Ok(None);
        }
        let digest = column("sha256")?.as_fixed_size_binary_opt().filter(|digests| digests.is_valid(row));
        let sha256 = digest.and_then(|digests| digests.value(row).first_chunk().copied());
        Ok(Some(Row {
            sample_id: number("sample_id")?,
            sha256: u64::from_be_bytes(sha256.ok_or_else(|| malformed("sha256"))?),
            phash: number("phash")?,
            area: side("width")?.saturating_mul(side("height")?),
        }))
    }
}
