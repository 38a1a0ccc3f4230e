//! Between Arrow columns and the flat buffers that tensors are made of. Null rows are left out on the way in and
//! come back as nulls on the way out.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, FixedSizeBinaryArray, LargeBinaryArray, RecordBatch, StringArray,
};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer};
use arrow::compute::filter;
use arrow::datatypes::{DataType, Field, Int32Type, UInt32Type};
use half::f16;
use tidemill_data::status::QUARANTINED;
use tidemill_store::{Dtype, TensorSpec};

use crate::error::{Error, Result};

/// The u8 CHW pixels of a batch at one resolution.
pub struct Pixels<'a> {
    /// In pixels.
    pub resolution: u32,
    /// Width and height of each row's image, if it has one.
    pub sizes: Vec<Option<(u32, u32)>>,
    /// The size that all images have, if `Prepare` says that there is only one.
    pub only_size: Option<(u32, u32)>,
    array: &'a LargeBinaryArray,
}

impl<'a> Pixels<'a> {
    /// Reads `pixels_R` and `size_R`.
    pub fn read(batch: &'a RecordBatch, resolution: u32) -> Result<Self> {
        let (name, schema) = (format!("pixels_{resolution}"), batch.schema());
        let column = find(batch, &name)?;
        let array = column.as_binary_opt().ok_or_else(|| wrong_type(&name, column, "LargeBinary"))?;
        let sizes = sizes(batch, resolution, array)?;
        let shape = schema.field_with_name(&name)?.metadata().get("shape");
        let only_size = match shape.and_then(|text| serde_json::from_str::<[u32; 3]>(text).ok()) {
            Some([3, height, width]) => Some((width, height)),
            _ => None,
        };
        Ok(Self { resolution, sizes, only_size, array })
    }

    /// The rows that have pixels, by width and height: only images of one size fit into one tensor.
    pub fn groups(&self) -> BTreeMap<(u32, u32), Vec<usize>> {
        let mut groups: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for (row, size) in self.sizes.iter().enumerate() {
            if let Some(size) = size {
                groups.entry(*size).or_default().push(row);
            }
        }
        groups
    }

    /// The pixels of some rows, one after the other.
    pub fn bytes(&self, rows: &[usize]) -> Vec<u8> {
        let images: Vec<&[u8]> = rows.iter().map(|row| self.array.value(*row)).collect();
        images.concat()
    }
}

/// `size_R` of the rows that have pixels, checked against their number.
fn sizes(batch: &RecordBatch, resolution: u32, pixels: &LargeBinaryArray) -> Result<Vec<Option<(u32, u32)>>> {
    let name = format!("size_{resolution}");
    let column = find(batch, &name)?;
    let lists = column.as_fixed_size_list_opt().filter(|lists| lists.value_length() == 2);
    let numbers = lists.and_then(|lists| lists.values().as_primitive_opt::<UInt32Type>());
    let numbers = numbers.ok_or_else(|| wrong_type(&name, column, "FixedSizeList<UInt32, 2>"))?.values();
    let size = |row: usize| {
        if pixels.is_null(row) {
            return Ok(None);
        }
        let (width, height, bytes) = (numbers[2 * row], numbers[2 * row + 1], pixels.value(row).len());
        if column.is_valid(row) && 3 * u64::from(width) * u64::from(height) == bytes as u64 {
            return Ok(Some((width, height)));
        }
        let found = format!("row {row} of `pixels_{resolution}` has {bytes} bytes");
        Err(Error::Encode(format!("{found}, but `{name}` says that it is {width}x{height} RGB pixels")))
    };
    (0..batch.num_rows()).map(size).collect()
}

fn find<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a ArrayRef> {
    batch.column_by_name(name).ok_or_else(|| Error::Encode(format!("the batch has no column `{name}`")))
}

/// The token ids of the rows that have any.
pub struct TokenIds {
    /// Ids per caption.
    pub length: usize,
    /// Which rows of the batch have ids.
    pub valid: Vec<bool>,
    ids: ArrayRef,
}

impl TokenIds {
    pub fn read(column: &ArrayRef) -> Result<Self> {
        let DataType::FixedSizeList(item, length) = column.data_type() else {
            return Err(wrong_type("token_ids", column, "FixedSizeList<Int32>"));
        };
        if *item.data_type() != DataType::Int32 || *length < 1 {
            return Err(wrong_type("token_ids", column, "FixedSizeList<Int32>"));
        }
        let (valid, lists) = only_valid(column)?;
        Ok(Self { length: *length as usize, valid, ids: lists.as_fixed_size_list().values().clone() })
    }

    pub fn ids(&self) -> &[i32] {
        self.ids.as_primitive::<Int32Type>().values()
    }
}

/// The rows that are not null, without copying where none is.
fn only_valid(column: &ArrayRef) -> Result<(Vec<bool>, ArrayRef)> {
    let valid: Vec<bool> = (0..column.len()).map(|i| column.is_valid(i)).collect();
    let array = if column.null_count() == 0 {
        column.clone()
    } else {
        filter(column, &BooleanArray::from(valid.clone()))?
    };
    Ok((valid, array))
}

fn wrong_type(name: &str, column: &ArrayRef, expected: &str) -> Error {
    Error::Encode(format!("column `{name}` is {}, but Prepare gives {expected}", column.data_type()))
}

/// One output column while it is filled.
pub struct Encoded {
    field: Field,
    dtype: Dtype,
    /// Bytes of each row; of a null one as many as the column's type asks for.
    widths: Vec<usize>,
    valid: Vec<bool>,
    /// Of all rows, one after the other: row-major, little-endian.
    bytes: Vec<u8>,
}

impl Encoded {
    /// The column `text`, in which every row has one shape.
    pub fn text(form: &TensorSpec, valid: Vec<bool>) -> Self {
        let bytes = form.bytes();
        let field = Field::new("text", DataType::FixedSizeBinary(bytes as i32), true);
        Self::new(field.with_metadata(form.metadata()), form.dtype, vec![bytes; valid.len()], valid)
    }

    /// The column `latents_R`: the shape of each row that has one, and the only shape there can be, if it is.
    pub fn latents(resolution: u32, shapes: &[Option<[i64; 3]>], only: Option<[i64; 3]>) -> Self {
        let form = |shape: [i64; 3]| TensorSpec::f16(shape.map(|n| n as u32));
        let metadata = only.map_or_else(
            || HashMap::from([("dtype".to_string(), Dtype::F16.to_string())]),
            |shape| form(shape).metadata(),
        );
        let field = Field::new(format!("latents_{resolution}"), DataType::LargeBinary, true);
        let widths = shapes.iter().map(|shape| shape.map_or(0, |shape| form(shape).bytes())).collect();
        let valid = shapes.iter().map(Option::is_some).collect();
        Self::new(field.with_metadata(metadata), Dtype::F16, widths, valid)
    }

    fn new(field: Field, dtype: Dtype, widths: Vec<usize>, valid: Vec<bool>) -> Self {
        let bytes = vec![0; widths.iter().sum()];
        Self { field, dtype, widths, valid, bytes }
    }

    pub fn field(&self) -> &Field {
        &self.field
    }

    /// Sets the values of some rows, given one after the other.
    pub fn put(&mut self, rows: &[usize], mut values: &[u8]) {
        let starts: Vec<usize> = starts(&self.widths).collect();
        for &row in rows {
            let (own, rest) = values.split_at(self.widths[row]);
            self.bytes[starts[row]..][..own.len()].copy_from_slice(own);
            values = rest;
        }
    }

    /// Sets `failed` for every row with an infinity or NaN.
    pub fn mark_not_finite(&self, failed: &mut [bool]) {
        if self.dtype != Dtype::F16 {
            return;
        }
        for ((start, width), failed) in starts(&self.widths).zip(&self.widths).zip(failed) {
            let values = self.bytes[start..start + width].as_chunks().0;
            *failed |= values.iter().any(|value| !f16::from_le_bytes(*value).is_finite());
        }
    }

    /// The column: rows without values and failed rows are null.
    pub fn into_array(self, failed: &[bool]) -> Result<ArrayRef> {
        let nulls: NullBuffer =
            self.valid.iter().zip(failed).map(|(valid, failed)| *valid && !failed).collect();
        let bytes = Buffer::from_vec(self.bytes);
        Ok(match self.field.data_type() {
            DataType::FixedSizeBinary(width) => {
                Arc::new(FixedSizeBinaryArray::try_new(*width, bytes, Some(nulls))?)
            }
            _ => {
                let offsets = OffsetBuffer::from_lengths(self.widths.iter().copied());
                Arc::new(LargeBinaryArray::try_new(offsets, bytes, Some(nulls))?)
            }
        })
    }
}

/// Where each row's values begin.
fn starts(widths: &[usize]) -> impl Iterator<Item = usize> {
    widths.iter().scan(0, |next, width| {
        let start = *next;
        *next += width;
        Some(start)
    })
}

/// Moves failed rows to quarantine.
pub fn mark_failed(batch: &RecordBatch, failed: &[bool], reason: &str) -> Result<RecordBatch> {
    let schema = batch.schema();
    let mut columns = batch.columns().to_vec();
    for (name, text) in [("status", QUARANTINED), ("reason", reason)] {
        let i = schema.index_of(name)?;
        let old = columns[i].as_string_opt::<i32>().ok_or_else(|| wrong_type(name, &columns[i], "Utf8"))?;
        let new: StringArray =
            old.iter().zip(failed).map(|(old, failed)| if *failed { Some(text) } else { old }).collect();
        columns[i] = Arc::new(new);
    }
    Ok(RecordBatch::try_new(schema, columns)?)
}

#[cfg(test)]
mod tests {
    use arrow::array::FixedSizeListArray;

    use super::*;

    fn little_endian(values: &[f16]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    fn batch(bytes: [Option<&[u8]>; 4]) -> RecordBatch {
        let sizes = [Some([2, 1]), None, Some([1, 1]), Some([2, 1])].map(|size| size.map(|s| s.map(Some)));
        let sizes = FixedSizeListArray::from_iter_primitive::<UInt32Type, _, _>(sizes, 2);
        let pixels: LargeBinaryArray = bytes.into_iter().collect();
        RecordBatch::try_from_iter([("pixels_8", Arc::new(pixels) as ArrayRef), ("size_8", Arc::new(sizes))])
            .unwrap()
    }

    #[test]
    fn rows_are_grouped_by_size_and_come_back_in_order() {
        let batch = batch([Some(b"abcdef"), None, Some(b"ghi"), Some(b"jklmno")]);
        let pixels = Pixels::read(&batch, 8).unwrap();
        let groups: Vec<_> = pixels.groups().into_iter().collect();
        assert_eq!(groups, [((1, 1), vec![2]), ((2, 1), vec![0, 3])]);
        assert_eq!(pixels.bytes(&[0, 3]), b"abcdefjklmno");
        assert_eq!(pixels.only_size, None);

        let shapes: Vec<_> =
            pixels.sizes.iter().map(|size| size.map(|(w, h)| [1, i64::from(h), i64::from(w)])).collect();
        let mut encoded = Encoded::latents(8, &shapes, None);
        let values = [1.0, 2.0, 3.0, 4.0, f32::INFINITY].map(f16::from_f32);
        encoded.put(&[0, 3], &little_endian(&values[..4]));
        encoded.put(&[2], &little_endian(&values[4..]));
        let mut failed = vec![false; 4];
        encoded.mark_not_finite(&mut failed);
        assert_eq!(failed, [false, false, true, false]);
        let array = encoded.into_array(&failed).unwrap();
        let rows: Vec<_> = array.as_binary::<i64>().iter().map(|row| row.map(<[u8]>::to_vec)).collect();
        assert_eq!(rows, [Some(little_endian(&values[..2])), None, None, Some(little_endian(&values[2..4]))]);
    }

    #[test]
    fn pixels_of_another_size_than_they_say_are_refused() {
        let batch = batch([Some(b"abc"), None, Some(b"ghi"), Some(b"jklmno")]);
        let error = Pixels::read(&batch, 8).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("row 0 of `pixels_8` has 3 bytes"), "{error}");
    }
}
