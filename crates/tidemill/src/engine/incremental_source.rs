//! Incremental re-run: a source that skips what an earlier run already computed. Each row comes
//! with what the unit's last commit knows about it, and images are read only if one of them is
//! needed.

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use tidemill_data::prepare::known_results;
use tidemill_data::source::{Batches, Source};
use tidemill_data::{Error, InputFile, InputUnit, Prepare};
use tidemill_store::ReusableRows;

use crate::engine::dataset_sink::DatasetSink;

/// A source together with the dataset that the run writes.
pub struct IncrementalSource<'a> {
    /// Reads the units.
    pub source: &'a dyn Source,
    /// Decides whether a unit's images are needed.
    pub prepare: &'a Prepare,
    /// The dataset, whose earlier commits are reused.
    pub sink: &'a DatasetSink,
}

impl Source for IncrementalSource<'_> {
    fn files(&self) -> &[InputFile] {
        self.source.files()
    }

    fn schema(&self) -> SchemaRef {
        self.source.schema()
    }

    fn units(&self) -> tidemill_data::Result<Vec<InputUnit>> {
        self.source.units()
    }

    fn read_with_memory(&self, unit: &InputUnit, room: u64) -> tidemill_data::Result<Batches> {
        let known = self.sink.find_reusable_rows(unit).map_err(|e| Error::Read {
            file: unit.file.uri.clone(),
            problem: format!("cannot read what the dataset knows about it: {e}"),
        })?;
        let Some(known) = known else { return self.source.read_with_memory(unit, room) };
        if let Some(batches) = self.source.read_without_images(unit)? {
            let batches = attach_known_rows(batches, known.clone()).collect::<Result<Vec<_>, _>>()?;
            if !self.needs_images(&batches)? {
                return Ok(Box::new(batches.into_iter().map(Ok)));
            }
        }
        Ok(Box::new(attach_known_rows(self.source.read_with_memory(unit, room)?, known)))
    }
}

impl IncrementalSource<'_> {
    fn needs_images(&self, batches: &[RecordBatch]) -> tidemill_data::Result<bool> {
        for batch in batches {
            if self.prepare.needs_images(batch)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Attaches what is known to the unit's rows, in order. If the earlier run read other rows at the
/// place of a batch, the batch stays as it is.
fn attach_known_rows(
    batches: Batches,
    known: ReusableRows,
) -> impl Iterator<Item = tidemill_data::Result<RecordBatch>> + Send {
    let mut next = 0;
    batches.map(move |batch| {
        let batch = batch?;
        let first = next;
        next += batch.num_rows();
        let earlier = (next <= known.rows.num_rows()).then(|| known.rows.slice(first, batch.num_rows()));
        match earlier.filter(|earlier| have_same_samples(&batch, earlier)) {
            Some(earlier) => known_results::attach(&batch, &earlier, &known.tensors),
            None => Ok(batch),
        }
    })
}

fn have_same_samples(one: &RecordBatch, other: &RecordBatch) -> bool {
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

    fn sample_id_column(ids: Range<u64>) -> (&'static str, ArrayRef) {
        ("sample_id", Arc::new(UInt64Array::from_iter_values(ids)))
    }

    /// The widths that each batch gets, if the earlier run stored width `i` for sample `i`.
    fn known_widths(earlier: Range<u64>, batches: &[Range<u64>]) -> Vec<Option<Vec<u32>>> {
        let widths = UInt32Array::from_iter_values(earlier.clone().map(|id| id as u32));
        let status = StringArray::from_iter_values(earlier.clone().map(|_| "kept"));
        let columns = [sample_id_column(earlier), ("status", Arc::new(status)), ("width", Arc::new(widths))];
        let rows = RecordBatch::try_from_iter(columns).unwrap();
        let known = ReusableRows { rows, tensors: ["latents_64".to_owned()].into() };
        let read = batches
            .iter()
            .map(|ids| Ok(RecordBatch::try_from_iter([sample_id_column(ids.clone())]).unwrap()));
        let width = |batch: &RecordBatch| {
            let known = batch.column_by_name(known_results::COLUMN)?.as_struct();
            Some(known.column_by_name("width")?.as_primitive::<UInt32Type>().values().to_vec())
        };
        let read: Batches = Box::new(read.collect::<Vec<_>>().into_iter());
        attach_known_rows(read, known).map(|batch| width(&batch.unwrap())).collect()
    }

    #[test]
    fn known_columns_attach_only_to_the_same_samples() {
        let known = |ids: Range<u32>| Some(ids.collect::<Vec<_>>());
        for (earlier, batches, expected) in [
            (0..10, vec![0..4, 4..8, 8..10], vec![known(0..4), known(4..8), known(8..10)]),
            // The earlier run read fewer rows; the second batch reaches beyond them.
            (0..6, vec![0..4, 4..8, 8..10], vec![known(0..4), None, None]),
            (0..6, vec![0..8, 8..12], vec![None, None]),
            // Other samples in the first batch; then a sample that shifts those after it.
            (0..12, vec![20..24, 4..8, 8..12], vec![None, known(4..8), known(8..12)]),
            (0..12, vec![0..5, 4..8, 8..11], vec![known(0..5), None, None]),
        ] {
            assert_eq!(known_widths(earlier, &batches), expected, "{batches:?}");
        }
    }
}
