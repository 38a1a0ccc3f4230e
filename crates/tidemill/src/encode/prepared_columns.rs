//! The columns of a prepared batch, as the flat buffers that input tensors are made of. Rows
//! without an image or caption are left out.

use std::collections::BTreeMap;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, LargeBinaryArray, RecordBatch, StringArray};
use arrow::compute::filter;
use arrow::datatypes::{DataType, Int32Type, UInt32Type};
use tidemill_data::columns::names::{is_resolution_column, token_ids_encoder};
use tidemill_data::prepare::CAPTION_PIXELS;

use crate::error::{Error, Result};

/// The u8 CHW pixels of a batch at one resolution.
pub(crate) struct Pixels<'a> {
    /// The resolution in pixels.
    pub resolution: u32,
    /// Width and height of each row's image, if it has one.
    pub sizes: Vec<Option<(u32, u32)>>,
    /// The size of all images, if the schema allows only one.
    pub only_size: Option<(u32, u32)>,
    array: &'a LargeBinaryArray,
}

impl<'a> Pixels<'a> {
    /// Reads the columns `pixels_R` and `size_R`.
    ///
    /// # Errors
    /// If a column is missing, has another type, or disagrees with the other one.
    pub fn from_batch(batch: &'a RecordBatch, resolution: u32) -> Result<Self> {
        let (name, schema) = (format!("pixels_{resolution}"), batch.schema());
        let column = find_column(batch, &name)?;
        let array = column.as_binary_opt().ok_or_else(|| wrong_type(&name, column, "LargeBinary"))?;
        let sizes = read_sizes(batch, resolution, array)?;
        let shape = schema.field_with_name(&name)?.metadata().get("shape");
        let only_size = match shape.and_then(|text| serde_json::from_str::<[u32; 3]>(text).ok()) {
            Some([3, height, width]) => Some((width, height)),
            _ => None,
        };
        Ok(Self { resolution, sizes, only_size, array })
    }

    /// The rows that have pixels, grouped by width and height: only images of one size fit into one
    /// tensor.
    pub fn group_by_size(&self) -> BTreeMap<(u32, u32), Vec<usize>> {
        let mut groups: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for (row, size) in self.sizes.iter().enumerate() {
            if let Some(size) = size {
                groups.entry(*size).or_default().push(row);
            }
        }
        groups
    }

    /// The pixels of some rows, concatenated.
    pub fn concat_rows(&self, rows: &[usize]) -> Vec<u8> {
        let images: Vec<&[u8]> = rows.iter().map(|row| self.array.value(*row)).collect();
        images.concat()
    }
}

/// Reads `size_R` of the rows that have pixels, and checks it against the number of pixels.
fn read_sizes(
    batch: &RecordBatch,
    resolution: u32,
    pixels: &LargeBinaryArray,
) -> Result<Vec<Option<(u32, u32)>>> {
    let name = format!("size_{resolution}");
    let column = find_column(batch, &name)?;
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

/// The token ids of the rows that have a caption.
pub(crate) struct TokenIds {
    /// Ids per caption.
    pub length: usize,
    /// Whether each row of the batch has ids.
    pub valid: Vec<bool>,
    ids: ArrayRef,
}

impl TokenIds {
    /// Reads the column `token_ids`.
    ///
    /// # Errors
    /// If the column has another type.
    pub fn from_column(column: &ArrayRef) -> Result<Self> {
        let DataType::FixedSizeList(item, length) = column.data_type() else {
            return Err(wrong_type("token_ids", column, "FixedSizeList<Int32>"));
        };
        if *item.data_type() != DataType::Int32 || *length < 1 {
            return Err(wrong_type("token_ids", column, "FixedSizeList<Int32>"));
        }
        let (valid, lists) = filter_valid(column)?;
        Ok(Self { length: *length as usize, valid, ids: lists.as_fixed_size_list().values().clone() })
    }

    /// The ids of all valid rows, concatenated.
    pub fn ids(&self) -> &[i32] {
        self.ids.as_primitive::<Int32Type>().values()
    }
}

/// Whether each row is valid, and the valid rows. Copies nothing if all are.
fn filter_valid(column: &ArrayRef) -> Result<(Vec<bool>, ArrayRef)> {
    let valid: Vec<bool> = (0..column.len()).map(|i| column.is_valid(i)).collect();
    let array = if column.null_count() == 0 {
        column.clone()
    } else {
        filter(column, &BooleanArray::from(valid.clone()))?
    };
    Ok((valid, array))
}

pub(crate) fn find_column<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a ArrayRef> {
    batch.column_by_name(name).ok_or_else(|| Error::Encode(format!("the batch has no column `{name}`")))
}

/// A column of texts.
pub(crate) fn text_column<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a StringArray> {
    let column = find_column(batch, name)?;
    column.as_string_opt().ok_or_else(|| wrong_type(name, column, "Utf8"))
}

/// True for the columns of `Prepare` that are null in rows that are not kept.
pub(crate) fn is_null_unless_kept(name: &str) -> bool {
    ["flipped", CAPTION_PIXELS].contains(&name)
        || is_resolution_column(name)
        || token_ids_encoder(name).is_some()
}

/// The error for a column of another type than `Prepare` makes.
pub(crate) fn wrong_type(name: &str, column: &ArrayRef, expected: &str) -> Error {
    Error::Encode(format!("column `{name}` is {}, but Prepare makes {expected}", column.data_type()))
}
