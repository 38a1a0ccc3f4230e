//! Between Arrow columns and the flat buffers that tensors are made of. Null rows are left out on the way in and
//! come back as nulls on the way out.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, FixedSizeBinaryArray, RecordBatch, StringArray};
use arrow::buffer::{Buffer, NullBuffer};
use arrow::compute::filter;
use arrow::datatypes::{DataType, Field, Int32Type};
use half::f16;
use tidemill_data::counts::QUARANTINED;

use crate::error::{Error, Result};

/// The u8 CHW pixels of the rows that have any.
pub struct Pixels {
    /// Side in pixels.
    pub resolution: i64,
    /// Which rows of the batch have pixels.
    pub valid: Vec<bool>,
    array: FixedSizeBinaryArray,
}

impl Pixels {
    pub fn read(column: &ArrayRef, resolution: i64) -> Result<Self> {
        let expected = DataType::FixedSizeBinary(3 * (resolution * resolution) as i32);
        if *column.data_type() != expected {
            return Err(wrong_type(&format!("pixels_{resolution}"), column, &expected.to_string()));
        }
        let (valid, array) = only_valid(column)?;
        Ok(Self { resolution, valid, array: array.as_fixed_size_binary().clone() })
    }

    /// Bytes of one image.
    pub fn width(&self) -> usize {
        self.array.value_length() as usize
    }

    pub fn bytes(&self) -> &[u8] {
        self.array.value_data()
    }
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

/// One output column while it is filled: the values of the valid rows, in order.
pub struct Encoded {
    name: String,
    shape: Vec<i64>,
    rows: Vec<usize>,
    total: usize,
    /// Row-major values of the valid rows, one after the other.
    pub values: Vec<f16>,
}

impl Encoded {
    pub fn new(name: String, shape: Vec<i64>, valid: &[bool]) -> Self {
        let rows: Vec<usize> = valid.iter().enumerate().filter(|(_, v)| **v).map(|(i, _)| i).collect();
        let values = Vec::with_capacity(rows.len() * shape.iter().product::<i64>() as usize);
        Self { name, shape, rows, total: valid.len(), values }
    }

    pub fn field(&self) -> Field {
        tensor_field(&self.name, &self.shape)
    }

    /// Values of one row.
    fn width(&self) -> usize {
        self.shape.iter().product::<i64>() as usize
    }

    /// Sets `failed` for every row with an infinity or NaN.
    pub fn mark_not_finite(&self, failed: &mut [bool]) {
        for (&row, values) in self.rows.iter().zip(self.values.chunks(self.width())) {
            failed[row] |= values.iter().any(|v| !v.is_finite());
        }
    }

    /// The column: rows without values and failed rows are null.
    pub fn scatter(self, failed: &[bool]) -> Result<FixedSizeBinaryArray> {
        let width = self.width();
        let mut valid = vec![false; self.total];
        for &row in &self.rows {
            valid[row] = !failed[row];
        }
        let values = if self.rows.len() == self.total {
            self.values
        } else {
            let mut all = vec![f16::ZERO; self.total * width];
            for (&row, values) in self.rows.iter().zip(self.values.chunks(width)) {
                all[row * width..(row + 1) * width].copy_from_slice(values);
            }
            all
        };
        let bytes = (2 * width) as i32;
        Ok(FixedSizeBinaryArray::try_new(bytes, little_endian(values), Some(NullBuffer::from(valid)))?)
    }
}

/// The values' bytes; on little-endian machines without a copy.
fn little_endian(mut values: Vec<f16>) -> Buffer {
    if cfg!(target_endian = "big") {
        for value in &mut values {
            *value = f16::from_bits(value.to_bits().swap_bytes());
        }
    }
    Buffer::from_vec(values)
}

/// A nullable tensor column: FixedSizeBinary of f16, with `dtype` and `shape` in its metadata.
pub fn tensor_field(name: &str, shape: &[i64]) -> Field {
    let bytes = 2 * shape.iter().product::<i64>();
    let shape = shape.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
    let metadata = [("dtype".to_string(), "f16".to_string()), ("shape".to_string(), format!("[{shape}]"))];
    Field::new(name, DataType::FixedSizeBinary(bytes as i32), true).with_metadata(HashMap::from(metadata))
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
