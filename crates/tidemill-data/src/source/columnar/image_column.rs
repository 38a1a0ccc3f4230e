//! Image columns that do not hold the bytes themselves: Hugging Face's struct {bytes,
//! path}, and strings that are paths or URIs. Both become LargeBinary. Images that are only named
//! are fetched; an image that cannot be fetched is an error of its row.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, LargeBinaryArray, LargeBinaryBuilder, RecordBatch, StringArray, StringBuilder,
};
use arrow::buffer::NullBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema};
use tokio::runtime::Runtime;

use crate::columns::names::SOURCE_ERROR;
use crate::columns::typed::is_binary;
use crate::error::Result;
use crate::source::fetch::ordered::{FetchResult, fetch_images, resolve_reference};

/// Converts the fields of a file to those of its batches.
pub fn resolve_image_fields(mut fields: Vec<Field>, image: &str) -> Vec<Field> {
    if let Some(field) =
        fields.iter_mut().find(|field| field.name() == image && !is_binary(field.data_type()))
    {
        field.set_data_type(DataType::LargeBinary);
        // Every row may have a path, and some of the images may be missing.
        field.set_nullable(true);
        fields.push(Field::new(SOURCE_ERROR, DataType::Utf8, true));
    }
    fields
}

/// Adds the images to a batch as it is in the file. References count from `base`. Returns one batch,
/// or several of about `max_bytes` if the images are large.
///
/// # Errors
/// If the image column cannot be converted.
pub fn resolve_images(
    runtime: &'static Runtime,
    base: &str,
    batch: RecordBatch,
    image: &str,
    max_bytes: u64,
) -> Result<Box<dyn Iterator<Item = Result<RecordBatch>> + Send>> {
    let at = match batch.schema().index_of(image) {
        Ok(at) if !is_binary(batch.column(at).data_type()) => at,
        _ => return Ok(Box::new(std::iter::once(Ok(batch)))),
    };
    let column = ImageReferences::new(batch.column(at))?;
    if column.references.null_count() == column.references.len() {
        let errors = StringArray::new_null(batch.num_rows());
        return Ok(Box::new(std::iter::once(replace_images(&batch, at, Arc::new(column.bytes), errors))));
    }
    let (base, references) = (base.to_owned(), column.references.clone());
    let items = (0..batch.num_rows()).map(move |row| {
        let name = references.is_valid(row).then(|| references.value(row)).filter(|name| !name.is_empty());
        (row, name.map(|name| resolve_reference(&base, name)))
    });
    let mut images = fetch_images(runtime, items, max_bytes);
    let mut start = 0;
    Ok(Box::new(std::iter::from_fn(move || {
        let chunk = match ImageChunk::fill(&mut images, &column.bytes, max_bytes) {
            Ok(chunk) => chunk?,
            Err(error) => return Some(Err(error)),
        };
        let rows = chunk.rows;
        start += rows;
        let (images, errors) = chunk.finish();
        Some(replace_images(&batch.slice(start - rows, rows), at, images, errors))
    })))
}

/// The image column: bytes, and references where there are no bytes.
struct ImageReferences {
    bytes: LargeBinaryArray,
    /// Paths or URIs of the rows without bytes.
    references: StringArray,
}

impl ImageReferences {
    fn new(column: &ArrayRef) -> Result<Self> {
        let Some(record) = column.as_struct_opt() else {
            let references = cast(column, &DataType::Utf8)?.as_string::<i32>().clone();
            return Ok(Self { bytes: LargeBinaryArray::new_null(column.len()), references });
        };
        let child = |name: &str, data_type: &DataType| match record.column_by_name(name) {
            Some(child) => cast(child, data_type),
            None => Ok(arrow::array::new_null_array(data_type, record.len())),
        };
        let bytes = child("bytes", &DataType::LargeBinary)?;
        let (offsets, values, nulls) = bytes.as_binary::<i64>().clone().into_parts();
        let nulls = NullBuffer::union(nulls.as_ref(), record.nulls());
        let bytes = LargeBinaryArray::try_new(offsets, values, nulls)?;
        let references = child("path", &DataType::Utf8)?;
        let references = references.as_string::<i32>();
        let named = |row: usize| {
            (record.is_valid(row) && bytes.is_null(row) && references.is_valid(row))
                .then(|| references.value(row))
        };
        let references = (0..record.len()).map(named).collect();
        Ok(Self { bytes, references })
    }
}

/// The images of some rows.
#[derive(Default)]
struct ImageChunk {
    rows: usize,
    bytes: u64,
    images: LargeBinaryBuilder,
    errors: StringBuilder,
}

impl ImageChunk {
    /// Takes images until there are enough bytes; `None` if there are no more.
    fn fill(
        fetched_images: &mut impl Iterator<Item = Result<(usize, Option<FetchResult>)>>,
        inline: &LargeBinaryArray,
        max_bytes: u64,
    ) -> Result<Option<Self>> {
        let mut chunk = Self::default();
        while chunk.bytes < max_bytes {
            let Some((row, fetched)) = fetched_images.next().transpose()? else { break };
            match fetched {
                None => chunk.push(inline.is_valid(row).then(|| inline.value(row)), None),
                Some(Ok(bytes)) => chunk.push(Some(&bytes), None),
                Some(Err(problem)) => chunk.push(None, Some(problem)),
            }
        }
        Ok((chunk.rows > 0).then_some(chunk))
    }

    fn push(&mut self, image: Option<&[u8]>, error: Option<String>) {
        self.rows += 1;
        self.bytes += image.map_or(0, <[u8]>::len) as u64;
        self.images.append_option(image);
        self.errors.append_option(error);
    }

    fn finish(mut self) -> (ArrayRef, StringArray) {
        (Arc::new(self.images.finish()), self.errors.finish())
    }
}

fn replace_images(
    batch: &RecordBatch,
    at: usize,
    images: ArrayRef,
    errors: StringArray,
) -> Result<RecordBatch> {
    let schema = batch.schema();
    let fields = schema.fields().iter().map(|field| field.as_ref().clone()).collect();
    let fields = resolve_image_fields(fields, schema.field(at).name());
    let mut columns = batch.columns().to_vec();
    columns[at] = images;
    columns.push(Arc::new(errors));
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
}
