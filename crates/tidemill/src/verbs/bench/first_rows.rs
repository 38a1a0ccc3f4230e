//! The first rows of a source.

use arrow::array::RecordBatch;
use tidemill_data::InputUnit;
use tidemill_data::source::Source;

use crate::error::Result;

/// Reads the first rows of a source, in batches.
///
/// # Errors
/// If a file cannot be read.
pub fn read_first_rows(source: &dyn Source, units: &[InputUnit], rows: usize) -> Result<Vec<RecordBatch>> {
    let mut left = rows;
    let mut batches = Vec::new();
    for unit in units {
        for batch in source.read(unit)? {
            let batch = batch?;
            batches.push(batch.slice(0, batch.num_rows().min(left)));
            left -= batch.num_rows().min(left);
            if left == 0 {
                return Ok(batches);
            }
        }
    }
    Ok(batches)
}
