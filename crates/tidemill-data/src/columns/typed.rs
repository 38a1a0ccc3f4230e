//! Typed views of Arrow columns: image bytes without a copy, texts and numbers whatever their physical type.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BinaryViewArray, Float64Array, LargeBinaryArray, ListArray,
    RecordBatch, StringArray,
};
use arrow::datatypes::{DataType, Field, Float64Type};

use crate::error::{Error, Result, RowError};

/// Where a column comes from and who asked for it, for messages.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// File, or "the batch".
    pub file: &'a str,
    /// Column name.
    pub column: &'a str,
    /// Configuration key.
    pub wanted_by: &'a str,
}

impl Place<'_> {
    fn refuse(&self, found: &DataType, expected: &'static str) -> Error {
        Error::ColumnType {
            file: self.file.into(),
            column: self.column.into(),
            wanted_by: self.wanted_by.into(),
            found: found.to_string(),
            expected,
        }
    }

    /// The column of a batch.
    pub fn find<'b>(&self, batch: &'b RecordBatch) -> Result<&'b ArrayRef> {
        batch.column_by_name(self.column).ok_or_else(|| Error::MissingColumn {
            file: self.file.into(),
            column: self.column.into(),
            wanted_by: self.wanted_by.into(),
            available: batch.schema().fields().iter().map(|field| field.name().clone()).collect(),
        })
    }

    /// Checks a column's type against the part it plays; carried columns may be anything.
    pub fn check(&self, data_type: &DataType) -> Result<()> {
        let (fits, expected) = match self.wanted_by {
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
        if fits { Ok(()) } else { Err(self.refuse(data_type, expected)) }
    }
}

const IMAGE: &str = "Binary, LargeBinary or BinaryView";
const TEXT: &str =
    "strings (Utf8, LargeUtf8, Utf8View, a dictionary of these), lists of strings, or UTF-8 in binary";
const FIELD: &str = "strings, numbers, dates or whatever else has a text";
const NUMBER: &str = "integers, floats or decimals";

/// Bytes, or what the Parquet source can turn into them.
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

/// Whether the type is of encoded images as they are.
pub fn is_binary(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Binary | DataType::LargeBinary | DataType::BinaryView)
}

pub(crate) fn is_text(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, value) => is_text(value),
        other => matches!(other, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View),
    }
}

/// Whether the type is a list of strings.
pub fn is_text_list(data_type: &DataType) -> bool {
    use DataType::{FixedSizeList, LargeList, List};
    matches!(data_type, List(item) | LargeList(item) | FixedSizeList(item, _) if is_text(item.data_type()))
}

pub(crate) fn is_number(data_type: &DataType) -> bool {
    data_type.is_numeric() || matches!(data_type, DataType::Dictionary(_, value) if value.is_numeric())
}

/// Encoded images, borrowed from the batch.
pub enum Images<'a> {
    /// 32-bit offsets.
    Binary(&'a BinaryArray),
    /// 64-bit offsets.
    Large(&'a LargeBinaryArray),
    /// Views.
    View(&'a BinaryViewArray),
}

impl<'a> Images<'a> {
    /// Views a column as images.
    pub fn new(column: &'a ArrayRef, place: Place) -> Result<Self> {
        Ok(match column.data_type() {
            DataType::Binary => Self::Binary(column.as_binary()),
            DataType::LargeBinary => Self::Large(column.as_binary()),
            DataType::BinaryView => Self::View(column.as_binary_view()),
            other => return Err(place.refuse(other, IMAGE)),
        })
    }

    /// The bytes of one row.
    pub fn get(&self, row: usize) -> Result<&'a [u8], RowError> {
        let bytes = match self {
            Self::Binary(array) => array.is_valid(row).then(|| array.value(row)),
            Self::Large(array) => array.is_valid(row).then(|| array.value(row)),
            Self::View(array) => array.is_valid(row).then(|| array.value(row)),
        };
        bytes.ok_or(RowError::Missing("image"))
    }
}

/// Texts: strings, bytes that have to be checked row by row, or several strings per row.
pub enum Texts {
    /// Valid UTF-8 throughout.
    Text(StringArray),
    /// Perhaps UTF-8.
    Bytes(LargeBinaryArray),
    /// Any number of strings.
    Lists(ListArray),
}

impl Texts {
    /// Reads a column as texts.
    pub fn new(column: &ArrayRef, place: Place) -> Result<Self> {
        let data_type = column.data_type();
        place.check(data_type)?;
        let cast = |to| arrow::compute::cast(column, &to).map_err(|_| place.refuse(data_type, TEXT));
        Ok(if is_binary(data_type) {
            Self::Bytes(cast(DataType::LargeBinary)?.as_binary().clone())
        } else if is_text_list(data_type) {
            let item = Field::new_list_field(DataType::Utf8, true);
            Self::Lists(cast(DataType::List(Arc::new(item)))?.as_list().clone())
        } else {
            Self::Text(cast(DataType::Utf8)?.as_string().clone())
        })
    }

    /// The texts of one row, with their places if it is a list. Nulls are left out.
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

/// What an f32 was written as: its shortest decimal. A score of 4.1 is then not below a bound of 4.1, as it is not in DuckDB.
pub fn as_written(value: f64) -> f64 {
    (value as f32).to_string().parse().unwrap_or(value)
}

/// A numeric column as f64.
pub struct Numbers {
    column: String,
    values: Float64Array,
}

impl Numbers {
    /// Reads a column as numbers.
    pub fn new(column: &ArrayRef, place: Place) -> Result<Self> {
        let refuse = || place.refuse(column.data_type(), NUMBER);
        if !is_number(column.data_type()) {
            return Err(refuse());
        }
        let values = arrow::compute::cast(column, &DataType::Float64).map_err(|_| refuse())?;
        let values = values.as_primitive::<Float64Type>();
        let values = match column.data_type() {
            DataType::Float32 => values.unary(as_written),
            _ => values.clone(),
        };
        Ok(Self { column: place.column.into(), values })
    }

    /// The number of one row; `None` if null.
    pub fn get(&self, row: usize) -> Result<Option<f64>, RowError> {
        match self.values.is_valid(row).then(|| self.values.value(row)) {
            Some(value) if !value.is_finite() => {
                Err(RowError::Number { column: self.column.clone(), value: value.to_string() })
            }
            finite => Ok(finite),
        }
    }
}
