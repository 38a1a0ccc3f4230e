//! A source that leaves out what an earlier run found out already: each row comes with what the unit's last commit
//! knows of it, and images are read only where something has to be done with one.

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use tidemill_data::prepare::known_results;
use tidemill_data::source::{Batches, Source};
use tidemill_data::{Error, InputFile, InputUnit, Prepare};
use tidemill_store::ReusableRows;

use crate::engine::dataset_sink::DatasetSink;

/// A source beside the dataset that it fills.
pub struct Incremental<'a> {
    /// Reads the units.
    pub source: &'a dyn Source,
    /// Says whether a unit's images are needed.
    pub prepare: &'a Prepare,
    /// Knows of earlier commits.
    pub sink: &'a DatasetSink,
}

impl Source for Incremental<'_> {
    fn files(&self) -> &[InputFile] {
        self.source.files()
    }

    fn schema(&self) -> SchemaRef {
        self.source.schema()
    }

    fn units(&self) -> tidemill_data::Result<Vec<InputUnit>> {
        self.source.units()
    }

    fn read_within(&self, unit: &InputUnit, room: u64) -> tidemill_data::Result<Batches> {
        let known = self.sink.known(unit).map_err(|e| Error::Read {
            file: unit.file.uri.clone(),
            problem: format!("what the dataset knows of it cannot be read: {e}"),
        })?;
        let Some(known) = known else { return self.source.read_within(unit, room) };
        if let Some(batches) = self.source.read_without_images(unit)? {
            let batches = with_known(batches, known.clone()).collect::<Result<Vec<_>, _>>()?;
            if !self.need_images(&batches)? {
                return Ok(Box::new(batches.into_iter().map(Ok)));
            }
        }
        Ok(Box::new(with_known(self.source.read_within(unit, room)?, known)))
    }
}

impl Incremental<'_> {
    fn need_images(&self, batches: &[RecordBatch]) -> tidemill_data::Result<bool> {
        for batch in batches {
            if self.prepare.needs_images(batch)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The unit's rows in order, each with what is known of it. A batch of other rows than the earlier run read in its place
/// comes as it is.
fn with_known(
    batches: Batches,
    known: ReusableRows,
) -> impl Iterator<Item = tidemill_data::Result<RecordBatch>> + Send {
    let mut next = 0;
    batches.map(move |batch| {
        let batch = batch?;
        let first = next;
        next += batch.num_rows();
        let earlier = (next <= known.rows.num_rows()).then(|| known.rows.slice(first, batch.num_rows()));
        match earlier.filter(|earlier| same_samples(&batch, earlier)) {
            Some(earlier) => known_results::attach(&batch, &earlier, &known.tensors),
            None => Ok(batch),
        }
    })
}

fn same_samples(one: &RecordBatch, other: &RecordBatch) -> bool {
    let (one, other) = (one.column_by_name("sample_id"), other.column_by_name("sample_id"));
    one.is_some() && one == other
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::sync::Arc;

    use arrow::array::{ArrayRef, AsArray, StringArray, UInt32Array, UInt64Array};
    use arrow::datatypes::UInt32Type;

    use super::*;

    fn samples(ids: Range<u64>) -> (&'static str, ArrayRef) {
        ("sample_id", Arc::new(UInt64Array::from_iter_values(ids)))
    }

    /// The widths known of the rows of each batch, whose earlier run gave sample `i` the width `i`.
    fn known_widths(earlier: Range<u64>, batches: &[Range<u64>]) -> Vec<Option<Vec<u32>>> {
        let widths = UInt32Array::from_iter_values(earlier.clone().map(|id| id as u32));
        let status = StringArray::from_iter_values(earlier.clone().map(|_| "kept"));
        let columns = [samples(earlier), ("status", Arc::new(status)), ("width", Arc::new(widths))];
        let rows = RecordBatch::try_from_iter(columns).unwrap();
        let known = ReusableRows { rows, tensors: ["latents_64".to_owned()].into() };
        let read = batches.iter().map(|ids| Ok(RecordBatch::try_from_iter([samples(ids.clone())]).unwrap()));
        let width = |batch: &RecordBatch| {
            let known = batch.column_by_name(known_results::COLUMN)?.as_struct();
            Some(known.column_by_name("width")?.as_primitive::<UInt32Type>().values().to_vec())
        };
        let read: Batches = Box::new(read.collect::<Vec<_>>().into_iter());
        with_known(read, known).map(|batch| width(&batch.unwrap())).collect()
    }

    #[test]
    fn rows_get_what_is_known_of_them_and_of_no_others() {
        let known = |ids: Range<u32>| Some(ids.collect::<Vec<_>>());
        for (earlier, batches, expected) in [
            (0..10, vec![0..4, 4..8, 8..10], vec![known(0..4), known(4..8), known(8..10)]),
            // The earlier run read fewer rows, and the second batch would have fitted into their beginning.
            (0..6, vec![0..4, 4..8, 8..10], vec![known(0..4), None, None]),
            (0..6, vec![0..8, 8..12], vec![None, None]),
            // Other rows in between, and a row that was not there before.
            (0..12, vec![20..24, 4..8, 8..12], vec![None, known(4..8), known(8..12)]),
            (0..12, vec![0..5, 4..8, 8..11], vec![known(0..5), None, None]),
        ] {
            assert_eq!(known_widths(earlier, &batches), expected, "{batches:?}");
        }
    }
}
