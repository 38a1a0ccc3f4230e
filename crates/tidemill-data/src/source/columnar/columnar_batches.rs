//! From the batches of a file to those of the source: nested columns, images, identity.

use std::sync::Arc;

use arrow::array::{RecordBatch, new_null_array};
use arrow::datatypes::{Field, Schema};

use crate::columns::names::SOURCE_ERROR;
use crate::error::Result;
use crate::source::batch_schema::add_identity_columns;
use crate::source::columnar::columns::NeededColumns;
use crate::source::columnar::image_column::resolve_images;
use crate::source::columnar::nested_column::find_values;
use crate::source::fetch::ordered::reference_base;
use crate::source::pair_source::Batches;
use crate::source::units::{InputFile, InputUnit};

/// The batches of one unit.
pub struct ColumnarBatches<I> {
    /// The batches as they are in the file.
    batches: I,
    file: InputFile,
    /// Most bytes of a batch with its images.
    max_bytes: u64,
    columns: NeededColumns,
    /// What relative names of images count from.
    base: String,
    /// The last batch with its images, in chunks.
    chunks: Batches,
    /// Index of the first row of the next chunk.
    next_row: u64,
    /// There was an error.
    is_done: bool,
}

impl<I: Iterator<Item = Result<RecordBatch>>> ColumnarBatches<I> {
    /// Converts the batches of a unit. `max_bytes` is the size in bytes of a batch with its images.
    ///
    /// # Errors
    /// If `source.image_root` is malformed.
    pub fn new(batches: I, unit: &InputUnit, max_bytes: u64, columns: NeededColumns) -> Result<Self> {
        Ok(Self {
            batches,
            max_bytes,
            file: unit.file.clone(),
            base: reference_base(&unit.file.uri, columns.image_root.as_deref())?,
            columns,
            chunks: Box::new(std::iter::empty()),
            next_row: unit.span.range().start,
            is_done: false,
        })
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(chunk) = self.chunks.next().transpose()? {
                let first_row = self.next_row;
                self.next_row += chunk.num_rows() as u64;
                let chunk = self.with_all_columns(chunk)?;
                return add_identity_columns(&chunk, &self.file, first_row, &self.columns.schema).map(Some);
            }
            let Some(batch) = self.batches.next().transpose()? else { return Ok(None) };
            let batch = self.with_nested_columns(batch)?;
            let runtime = tidemill_io::runtime()?;
            self.chunks = resolve_images(runtime, &self.base, batch, &self.columns.image, self.max_bytes)?;
        }
    }

    /// Adds the columns that are named by a path.
    fn with_nested_columns(&self, batch: RecordBatch) -> Result<RecordBatch> {
        let schema = batch.schema();
        let nested: Vec<&str> =
            self.columns.names().filter(|name| schema.column_with_name(name).is_none()).collect();
        if nested.is_empty() {
            return Ok(batch);
        }
        let mut fields: Vec<Arc<Field>> = schema.fields().to_vec();
        let mut values = batch.columns().to_vec();
        for name in nested {
            if let Some(column) = find_values(&batch, name)? {
                fields.push(Arc::new(Field::new(name, column.data_type().clone(), true)));
                values.push(column);
            }
        }
        Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), values)?)
    }

    /// Adds nulls for images that were not requested.
    fn with_all_columns(&self, batch: RecordBatch) -> Result<RecordBatch> {
        if batch.column_by_name(&self.columns.image).is_some() {
            return Ok(batch);
        }
        let schema = batch.schema();
        let missing =
            |field: &&Arc<Field>| [&*self.columns.image, SOURCE_ERROR].contains(&field.name().as_str());
        let missing: Vec<_> = self.columns.schema.fields().iter().filter(missing).cloned().collect();
        let nulls = missing.iter().map(|field| new_null_array(field.data_type(), batch.num_rows()));
        let columns = batch.columns().iter().cloned().chain(nulls).collect();
        let fields: Vec<_> = schema.fields().iter().cloned().chain(missing.clone()).collect();
        Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
    }
}

impl<I: Iterator<Item = Result<RecordBatch>>> Iterator for ColumnarBatches<I> {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        let batch = self.next_batch();
        self.is_done = batch.is_err();
        batch.transpose()
    }
}
