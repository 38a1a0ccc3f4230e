//! Typed views of Arrow columns: image bytes without a copy, texts and numbers whatever their
//! physical type.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BinaryViewArray, Float64Array, LargeBinaryArray, ListArray,
    RecordBatch, StringArray,
};
use arrow::datatypes::{DataType, Field, Float64Type};

use crate::error::{Error, Result, RowError};

/// A column that is asked for. File and configuration key appear in error messages.
#[derive(Clone, Copy)]
pub struct ColumnRequest<'a> {
    /// Path or URI of the file, or "the batch".
    pub file: &'a str,
    /// Name of the column.
    pub column: &'a str,
    /// The configuration key that names the column, such as `source.columns.image`.
    pub config_key: &'a str,
}

impl ColumnRequest<'_> {
    fn type_error(&self, found: &DataType, expected: &'static str) -> Error {
        Error::ColumnType {
            file: self.file.into(),
            column: self.column.into(),
            config_key: self.config_key.into(),
            found: found.to_string(),
            expected,
        }
    }

    /// Finds the column in a batch.
    ///
    /// # Errors
    /// [`Error::MissingColumn`].
    pub fn find_in<'b>(&self, batch: &'b RecordBatch) -> Result<&'b ArrayRef> {
        batch.column_by_name(self.column).ok_or_else(|| Error::MissingColumn {
            file: self.file.into(),
            column: self.column.into(),
            config_key: self.config_key.into(),
            available: batch.schema().fields().iter().map(|field| field.name().clone()).collect(),
        })
    }

    /// Checks that a column's type suits the configuration key that names it. Carried columns may
    /// have any type.
    ///
    /// # Errors
    /// [`Error::ColumnType`].
    pub fn check_type(&self, data_type: &DataType) -> Result<()> {
        let (is_valid, expected) = match self.config_key {
            "source.columns.image" if is_list_of_images(data_type) => {
                (false, "one image for each row; of a list, name an item, such as `images[0]` for the first")
            }
            "source.columns.image" => (
                is_image(data_type),
                "Binary, LargeBinary, BinaryView, a struct {bytes, path}, or strings that are paths or URIs",
            ),
            "source.columns.caption" => {
                (is_text(data_type) || is_binary(data_type) || is_text_list(data_type), TEXT)
            }
            "caption.template" => {
                (arrow::compute::can_cast_types(data_type, &DataType::Utf8) && !data_type.is_nested(), FIELD)
            }
            "source.columns.url" => (is_text(data_type), "strings"),
            "source.columns.key" => (is_text(data_type) || data_type.is_integer(), "strings or integers"),
            "source.columns.width" | "source.columns.height" | "filter.score" => {
                (is_number(data_type), NUMBER)
            }
            _ => (true, ""),
        };
        if is_valid { Ok(()) } else { Err(self.type_error(data_type, expected)) }
    }
}

const IMAGE: &str = "Binary, LargeBinary or BinaryView";
const TEXT: &str =
    "strings (Utf8, LargeUtf8, Utf8View, a dictionary of these), lists of strings, or UTF-8 in binary";
const FIELD: &str = "strings, numbers, dates or whatever else has a text";
const NUMBER: &str = "integers, floats or decimals";

/// True for bytes, and for what columnar sources can turn into bytes.
fn is_image(data_type: &DataType) -> bool {
    match data_type {
        DataType::Struct(fields) => fields.iter().any(|field| match field.name().as_str() {
            "bytes" => is_binary(field.data_type()),
            "path" => is_text(field.data_type()),
            _ => false,
        }),
        other => is_binary(other) || is_text(other),
    }
}

fn is_list_of_images(data_type: &DataType) -> bool {
    use DataType::{FixedSizeList, LargeList, List};
    matches!(data_type, List(item) | LargeList(item) | FixedSizeList(item, _) if is_image(item.data_type()))
}

/// True if the column holds encoded images themselves, not their paths.
pub fn is_binary(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Binary | DataType::LargeBinary | DataType::BinaryView)
}

pub(crate) fn is_text(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, value) => is_text(value),
        other => matches!(other, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View),
    }
}

/// True for lists of strings.
pub fn is_text_list(data_type: &DataType) -> bool {
    use DataType::{FixedSizeList, LargeList, List};
    matches!(data_type, List(item) | LargeList(item) | FixedSizeList(item, _) if is_text(item.data_type()))
}

pub(crate) fn is_number(data_type: &DataType) -> bool {
    data_type.is_numeric() || matches!(data_type, DataType::Dictionary(_, value) if value.is_numeric())
}

/// A column of encoded images, borrowed from the batch.
pub enum ImageColumn<'a> {
    /// `Binary`: 32-bit offsets.
    Binary(&'a BinaryArray),
    /// `LargeBinary`: 64-bit offsets.
    Large(&'a LargeBinaryArray),
    /// `BinaryView`.
    View(&'a BinaryViewArray),
}

impl<'a> ImageColumn<'a> {
    /// Views a column as images.
    ///
    /// # Errors
    /// [`Error::ColumnType`] if it holds no bytes.
    pub fn new(column: &'a ArrayRef, request: ColumnRequest) -> Result<Self> {
        Ok(match column.data_type() {
            DataType::Binary => Self::Binary(column.as_binary()),
            DataType::LargeBinary => Self::Large(column.as_binary()),
            DataType::BinaryView => Self::View(column.as_binary_view()),
            other => return Err(request.type_error(other, IMAGE)),
        })
    }

    /// The encoded image of a row.
    ///
    /// # Errors
    /// [`RowError::Missing`] if it is null.
    pub fn get(&self, row: usize) -> Result<&'a [u8], RowError> {
        let bytes = match self {
            Self::Binary(array) => array.is_valid(row).then(|| array.value(row)),
            Self::Large(array) => array.is_valid(row).then(|| array.value(row)),
            Self::View(array) => array.is_valid(row).then(|| array.value(row)),
        };
        bytes.ok_or(RowError::Missing("image"))
    }
}

/// A column of texts: strings, bytes that have to be checked row by row, or several strings per
/// row.
pub enum TextColumn {
    /// Strings: valid UTF-8.
    Text(StringArray),
    /// Bytes that may or may not be UTF-8.
    Bytes(LargeBinaryArray),
    /// Lists of strings.
    Lists(ListArray),
}

impl TextColumn {
    /// Reads a column as texts.
    ///
    /// # Errors
    /// [`Error::ColumnType`].
    pub fn new(column: &ArrayRef, request: ColumnRequest) -> Result<Self> {
        let data_type = column.data_type();
        request.check_type(data_type)?;
        let cast = |to| arrow::compute::cast(column, &to).map_err(|_| request.type_error(data_type, TEXT));
        Ok(if is_binary(data_type) {
            Self::Bytes(cast(DataType::LargeBinary)?.as_binary().clone())
        } else if is_text_list(data_type) {
            let item = Field::new_list_field(DataType::Utf8, true);
            Self::Lists(cast(DataType::List(Arc::new(item)))?.as_list().clone())
        } else {
            Self::Text(cast(DataType::Utf8)?.as_string().clone())
        })
    }

    /// The texts of a row that are not null. Where the column holds lists, each comes with its
    /// index in the list.
    pub fn row(&self, row: usize) -> Vec<(Option<usize>, Result<&str, RowError>)> {
        match self {
            Self::Text(array) if array.is_valid(row) => vec![(None, Ok(array.value(row)))],
            Self::Bytes(array) if array.is_valid(row) => {
                let text = std::str::from_utf8(array.value(row));
                vec![(None, text.map_err(|_| RowError::Encoding("caption")))]
            }
            Self::Lists(array) if array.is_valid(row) => {
                let start = usize::try_from(array.value_offsets()[row]).unwrap_or(0);
                let length = usize::try_from(array.value_length(row)).unwrap_or(0);
                let items = array.values().as_string::<i32>();
                let valid = (0..length).filter(|item| items.is_valid(start + item));
                valid.map(|item| (Some(item), Ok(items.value(start + item)))).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// The shortest decimal number that becomes this `f32`, as `f64`. Widening the bits instead would
/// give 4.099999904632568 for a score of 4.1, which is below a bound of 4.1. DuckDB compares the
/// same way.
pub fn shortest_decimal_of_f32(value: f64) -> f64 {
    (value as f32).to_string().parse().unwrap_or(value)
}

/// A numeric column as `f64`.
pub struct NumberColumn {
    column: String,
    values: Float64Array,
}

impl NumberColumn {
    /// Reads a column as numbers.
    ///
    /// # Errors
    /// [`Error::ColumnType`].
    pub fn new(column: &ArrayRef, request: ColumnRequest) -> Result<Self> {
        let type_error = || request.type_error(column.data_type(), NUMBER);
        if !is_number(column.data_type()) {
            return Err(type_error());
        }
        let values = arrow::compute::cast(column, &DataType::Float64).map_err(|_| type_error())?;
        let values = values.as_primitive::<Float64Type>();
        let values = match column.data_type() {
            DataType::Float32 => values.unary(shortest_decimal_of_f32),
            _ => values.clone(),
        };
        Ok(Self { column: request.column.into(), values })
    }

    /// The number of a row; `None` if it is null.
    ///
    /// # Errors
    /// [`RowError::Number`] if it is NaN or infinite.
    pub fn get(&self, row: usize) -> Result<Option<f64>, RowError> {
        match self.values.is_valid(row).then(|| self.values.value(row)) {
            Some(value) if !value.is_finite() => {
                Err(RowError::Number { column: self.column.clone(), value: value.to_string() })
            }
            finite => Ok(finite),
        }
    }
}
