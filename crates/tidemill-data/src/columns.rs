//! Typed views of Arrow columns: image bytes without a copy, captions and numbers whatever their physical type.

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BinaryViewArray, Float64Array, LargeBinaryArray, StringArray,
};
use arrow::datatypes::{DataType, Float64Type};

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

    /// Checks a column's type against the part it plays; carried columns may be anything.
    pub fn check(&self, data_type: &DataType) -> Result<()> {
        let (fits, expected) = match self.wanted_by {
            "source.columns.image" => (
                is_image(data_type),
                "Binary, LargeBinary, BinaryView, a struct {bytes, path}, or strings that are paths or URIs",
            ),
            "source.columns.caption" => (is_text(data_type) || is_binary(data_type), TEXT),
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
const TEXT: &str = "strings (Utf8, LargeUtf8, Utf8View, a dictionary of these) or UTF-8 in binary";
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

fn is_text(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, value) => is_text(value),
        other => matches!(other, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View),
    }
}

fn is_number(data_type: &DataType) -> bool {
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

/// Captions: strings, or bytes that have to be checked row by row.
pub enum Captions {
    /// Valid UTF-8 throughout.
    Text(StringArray),
    /// Perhaps UTF-8.
    Bytes(LargeBinaryArray),
}

impl Captions {
    /// Reads a column as captions.
    pub fn new(column: &ArrayRef, place: Place) -> Result<Self> {
        let data_type = column.data_type();
        let refuse = |_| place.refuse(data_type, TEXT);
        if is_binary(data_type) {
            let bytes = arrow::compute::cast(column, &DataType::LargeBinary).map_err(refuse)?;
            return Ok(Self::Bytes(bytes.as_binary().clone()));
        }
        if !is_text(data_type) {
            return Err(place.refuse(data_type, TEXT));
        }
        let text = arrow::compute::cast(column, &DataType::Utf8).map_err(refuse)?;
        Ok(Self::Text(text.as_string().clone()))
    }

    /// The caption of one row.
    pub fn get(&self, row: usize) -> Result<&str, RowError> {
        match self {
            Self::Text(array) if array.is_valid(row) => Ok(array.value(row)),
            Self::Bytes(array) if array.is_valid(row) => {
                std::str::from_utf8(array.value(row)).map_err(|_| RowError::Encoding("caption"))
            }
            _ => Err(RowError::Missing("caption")),
        }
    }

    /// All captions as a Utf8 column, null where there is none or it is no UTF-8.
    pub fn to_array(&self) -> StringArray {
        match self {
            Self::Text(array) => array.clone(),
            Self::Bytes(array) => (0..array.len()).map(|row| self.get(row).ok()).collect(),
        }
    }
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
        Ok(Self { column: place.column.into(), values: values.as_primitive::<Float64Type>().clone() })
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
