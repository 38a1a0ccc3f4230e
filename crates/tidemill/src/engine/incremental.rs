//! A source that leaves out what an earlier run found out already: each row comes with what the unit's last commit
//! knows of it, and images are read only where something has to be done with one.

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use tidemill_data::prepare::known;
use tidemill_data::source::{Batches, Source};
use tidemill_data::{Error, InputFile, InputUnit, Prepare};
use tidemill_store::Known;

use super::dataset::DatasetSink;

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

/// The unit's rows in order, each with what is known of it.
fn with_known(
    batches: Batches,
    known: Known,
) -> impl Iterator<Item = tidemill_data::Result<RecordBatch>> + Send {
    let mut row = 0;
    batches.map(move |batch| {
        let batch = batch?;
        let rows = batch.num_rows().min(known.rows.num_rows().saturating_sub(row));
        if rows < batch.num_rows() {
            // Whatever the earlier run read, it was not this.
            return Ok(batch);
        }
        let earlier = known.rows.slice(row, rows);
        row += rows;
        known::attach(&batch, &earlier, &known.tensors)
    })
}
