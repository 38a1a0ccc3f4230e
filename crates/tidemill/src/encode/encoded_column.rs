//! The columns of an encoded batch, filled from the flat buffers of result tensors. Rows without a
//! result become nulls.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, FixedSizeBinaryArray, LargeBinaryArray, RecordBatch, StringArray};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field};
use half::f16;
use tidemill_data::status::QUARANTINED;
use tidemill_store::{Dtype, TensorSpec};

use crate::encode::prepared_columns::wrong_type;
use crate::error::Result;

/// One output column while it is filled.
pub(crate) struct EncodedColumn {
    field: Field,
    dtype: Dtype,
    /// Bytes of each row. A null row has as many as the column's type requires.
    widths: Vec<usize>,
    valid: Vec<bool>,
    /// The values of all rows, concatenated: row-major, little-endian.
    bytes: Vec<u8>,
}

impl EncodedColumn {
    /// A text column. All rows have the same shape.
    pub fn text(name: &str, spec: &TensorSpec, valid: Vec<bool>) -> Self {
        let bytes = spec.bytes();
        let field = Field::new(name, DataType::FixedSizeBinary(bytes as i32), true);
        Self::new(field.with_metadata(spec.metadata()), spec.dtype, vec![bytes; valid.len()], valid)
    }

    /// The column `latents_R`. `shapes` has the shape of each row that has latents; `only_shape` is
    /// the shape of all rows, if there can be only one.
    pub fn latents(resolution: u32, shapes: &[Option<[i64; 3]>], only_shape: Option<[i64; 3]>) -> Self {
        let spec = |shape: [i64; 3]| TensorSpec::f16(shape.map(|n| n as u32));
        let metadata = only_shape.map_or_else(
            || HashMap::from([("dtype".to_string(), Dtype::F16.to_string())]),
            |shape| spec(shape).metadata(),
        );
        let field = Field::new(format!("latents_{resolution}"), DataType::LargeBinary, true);
        let widths = shapes.iter().map(|shape| shape.map_or(0, |shape| spec(shape).bytes())).collect();
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

    /// Sets the values of some rows, given concatenated.
    pub fn set_rows(&mut self, rows: &[usize], mut values: &[u8]) {
        let starts: Vec<usize> = row_starts(&self.widths).collect();
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
        for ((start, width), failed) in row_starts(&self.widths).zip(&self.widths).zip(failed) {
            let values = self.bytes[start..start + width].as_chunks().0;
            *failed |= values.iter().any(|value| !f16::from_le_bytes(*value).is_finite());
        }
    }

    /// The finished column. Rows without values and failed rows are null.
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

/// The offset of each row's values.
fn row_starts(widths: &[usize]) -> impl Iterator<Item = usize> {
    widths.iter().scan(0, |next, width| {
        let start = *next;
        *next += width;
        Some(start)
    })
}

/// Quarantines failed rows: sets their status and reason.
pub(crate) fn quarantine_failed(batch: &RecordBatch, failed: &[bool], reason: &str) -> Result<RecordBatch> {
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
    use arrow::datatypes::UInt32Type;

    use super::*;
    use crate::encode::prepared_columns::Pixels;

    fn to_little_endian(values: &[f16]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    /// Four rows at 8 pixels: sizes 2x1, none, 1x1 and 2x1, with these pixels.
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
        let pixels = Pixels::from_batch(&batch, 8).unwrap();
        let groups: Vec<_> = pixels.group_by_size().into_iter().collect();
        assert_eq!(groups, [((1, 1), vec![2]), ((2, 1), vec![0, 3])]);
        assert_eq!(pixels.concat_rows(&[0, 3]), b"abcdefjklmno");
        assert_eq!(pixels.only_size, None);

        let shapes: Vec<_> =
            pixels.sizes.iter().map(|size| size.map(|(w, h)| [1, i64::from(h), i64::from(w)])).collect();
        let mut encoded = EncodedColumn::latents(8, &shapes, None);
        let values = [1.0, 2.0, 3.0, 4.0, f32::INFINITY].map(f16::from_f32);
        encoded.set_rows(&[0, 3], &to_little_endian(&values[..4]));
        encoded.set_rows(&[2], &to_little_endian(&values[4..]));
        let mut failed = vec![false; 4];
        encoded.mark_not_finite(&mut failed);
        assert_eq!(failed, [false, false, true, false]);
        let array = encoded.into_array(&failed).unwrap();
        let rows: Vec<_> = array.as_binary::<i64>().iter().map(|row| row.map(<[u8]>::to_vec)).collect();
        assert_eq!(
            rows,
            [Some(to_little_endian(&values[..2])), None, None, Some(to_little_endian(&values[2..4]))]
        );
    }

    #[test]
    fn pixels_that_disagree_with_their_size_are_refused() {
        let batch = batch([Some(b"abc"), None, Some(b"ghi"), Some(b"jklmno")]);
        let error = Pixels::from_batch(&batch, 8).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("row 0 of `pixels_8` has 3 bytes"), "{error}");
    }
}
