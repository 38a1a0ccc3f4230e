//! Image columns of Parquet that do not simply hold the bytes: Hugging Face's struct {bytes, path}, and strings that
//! are paths or URIs. Both become LargeBinary, what is only named is fetched, and what cannot be had is the row's error.

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
use crate::source::fetch::ordered::{Fetched, fetch, resolve};
use crate::source::units::InputFile;

/// Turns the fields read from a file into those of its batches.
pub fn resolved(mut fields: Vec<Field>, image: &str) -> Vec<Field> {
    if let Some(field) =
        fields.iter_mut().find(|field| field.name() == image && !is_binary(field.data_type()))
    {
        field.set_data_type(DataType::LargeBinary);
        // Every row may have a path, and one of them no image.
        field.set_nullable(true);
        fields.push(Field::new(SOURCE_ERROR, DataType::Utf8, true));
    }
    fields
}

/// Gives a batch as it was read with its images in place: in one piece, or in several of about `room` bytes if their
/// images are large.
pub fn resolve_images(
    runtime: &'static Runtime,
    file: &InputFile,
    batch: RecordBatch,
    image: &str,
    room: u64,
) -> Result<Box<dyn Iterator<Item = Result<RecordBatch>> + Send>> {
    let at = match batch.schema().index_of(image) {
        Ok(at) if !is_binary(batch.column(at).data_type()) => at,
        _ => return Ok(Box::new(std::iter::once(Ok(batch)))),
    };
    let column = Inline::new(batch.column(at))?;
    if column.names.null_count() == column.names.len() {
        let errors = StringArray::new_null(batch.num_rows());
        return Ok(Box::new(std::iter::once(replace(&batch, at, Arc::new(column.bytes), errors))));
    }
    let (uri, names) = (file.uri.clone(), column.names.clone());
    let items = (0..batch.num_rows()).map(move |row| {
        let name = names.is_valid(row).then(|| names.value(row)).filter(|name| !name.is_empty());
        (row, name.map(|name| resolve(&uri, name)))
    });
    let mut images = fetch(runtime, items, room);
    let mut start = 0;
    Ok(Box::new(std::iter::from_fn(move || {
        let piece = match Piece::fill(&mut images, &column.bytes, room) {
            Ok(piece) => piece?,
            Err(error) => return Some(Err(error)),
        };
        let rows = piece.rows;
        start += rows;
        let (images, errors) = piece.finish();
        Some(replace(&batch.slice(start - rows, rows), at, images, errors))
    })))
}

/// What the column itself says.
struct Inline {
    bytes: LargeBinaryArray,
    /// Where there are no bytes.
    names: StringArray,
}

impl Inline {
    fn new(column: &ArrayRef) -> Result<Self> {
        let Some(record) = column.as_struct_opt() else {
            let names = cast(column, &DataType::Utf8)?.as_string::<i32>().clone();
            return Ok(Self { bytes: LargeBinaryArray::new_null(column.len()), names });
        };
        let child = |name: &str, data_type: &DataType| match record.column_by_name(name) {
            Some(child) => cast(child, data_type),
            None => Ok(arrow::array::new_null_array(data_type, record.len())),
        };
        let bytes = child("bytes", &DataType::LargeBinary)?;
        let (offsets, values, nulls) = bytes.as_binary::<i64>().clone().into_parts();
        let nulls = NullBuffer::union(nulls.as_ref(), record.nulls());
        let bytes = LargeBinaryArray::try_new(offsets, values, nulls)?;
        let names = child("path", &DataType::Utf8)?;
        let names = names.as_string::<i32>();
        let named = |row: usize| {
            (record.is_valid(row) && bytes.is_null(row) && names.is_valid(row)).then(|| names.value(row))
        };
        let names = (0..record.len()).map(named).collect();
        Ok(Self { bytes, names })
    }
}

/// Some rows' images.
#[derive(Default)]
struct Piece {
    rows: usize,
    bytes: u64,
    images: LargeBinaryBuilder,
    errors: StringBuilder,
}

impl Piece {
    /// Takes images until there are enough bytes. None if there are no more.
    fn fill(
        from: &mut impl Iterator<Item = Result<(usize, Option<Fetched>)>>,
        inline: &LargeBinaryArray,
        enough: u64,
    ) -> Result<Option<Self>> {
        let mut piece = Self::default();
        while piece.bytes < enough {
            let Some((row, fetched)) = from.next().transpose()? else { break };
            match fetched {
                None => piece.push(inline.is_valid(row).then(|| inline.value(row)), None),
                Some(Ok(bytes)) => piece.push(Some(&bytes), None),
                Some(Err(problem)) => piece.push(None, Some(problem)),
            }
        }
        Ok((piece.rows > 0).then_some(piece))
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

fn replace(batch: &RecordBatch, at: usize, images: ArrayRef, errors: StringArray) -> Result<RecordBatch> {
    let schema = batch.schema();
    let fields = schema.fields().iter().map(|field| field.as_ref().clone()).collect();
    let fields = resolved(fields, schema.field(at).name());
    let mut columns = batch.columns().to_vec();
    columns[at] = images;
    columns.push(Arc::new(errors));
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
}
