//! The columns of an input batch, typed.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringArray, UInt64Array};
use arrow::datatypes::{DataType, UInt64Type};

use crate::caption::stage::{CaptionStage, Captions};
use crate::columns::names::SOURCE_ERROR;
use crate::columns::typed::{ColumnRequest, ImageColumn, NumberColumn};
use crate::error::{Error, Result, RowError};
use crate::prepare::known_results::KnownResults;
use crate::source::config::Columns;
use crate::source::sample_id::sample_id;

/// The columns that the stage reads.
pub struct InputColumns {
    /// Names of the columns of `[source.columns]`.
    pub columns: Columns,
    /// Names of the carried columns.
    pub carry: Vec<String>,
    /// Names of the score columns, in the order of
    /// [`FilterConfig::score`](crate::filter::FilterConfig::score).
    pub scores: Vec<String>,
    /// Reads the captions.
    pub captions: CaptionStage,
}

/// An input batch whose columns are checked.
pub struct Input<'a> {
    pub ids: UInt64Array,
    pub rows: UInt64Array,
    pub keys: StringArray,
    pub captions: Captions,
    pub carried: Vec<ArrayRef>,
    pub known: Option<KnownResults<'a>>,
    images: ImageColumn<'a>,
    urls: Option<StringArray>,
    declared: Vec<NumberColumn>,
    scores: Vec<NumberColumn>,
    source_errors: Option<StringArray>,
}

/// A readable row.
pub struct Pair<'a> {
    /// The encoded image, or why it is missing. A missing image is no error if it is not needed.
    pub image: Result<&'a [u8], RowError>,
    pub caption: &'a str,
    pub scores: Vec<Option<f64>>,
    pub key: &'a str,
    pub url: Option<&'a str>,
}

impl<'a> Input<'a> {
    pub fn new(
        batch: &'a RecordBatch,
        InputColumns { columns, carry, scores, captions }: &InputColumns,
    ) -> Result<Self> {
        let numbers = |name: &String, config_key: &str| {
            let request = column_request(name, config_key);
            NumberColumn::new(request.find_in(batch)?, request)
        };
        let image = column_request(&columns.image, "source.columns.image");
        let width = columns.width.iter().map(|name| numbers(name, "source.columns.width"));
        let height = columns.height.iter().map(|name| numbers(name, "source.columns.height"));
        let rows = match batch.column_by_name("source_row") {
            Some(column) => read_unsigned(column, "source_row")?,
            None => UInt64Array::from_iter_values(0..batch.num_rows() as u64),
        };
        let keys = read_keys(batch, columns.key.as_deref(), &rows)?;
        let ids = match batch.column_by_name("sample_id") {
            Some(column) => read_unsigned(column, "sample_id")?,
            None => keys.iter().flatten().zip(rows.values()).map(|(key, &row)| sample_id(key, row)).collect(),
        };
        Ok(Self {
            known: KnownResults::from_batch(batch),
            images: ImageColumn::new(image.find_in(batch)?, image)?,
            captions: captions.read(batch, &ids)?,
            urls: columns.url.as_deref().map(|name| read_urls(batch, name)).transpose()?,
            declared: width.chain(height).collect::<Result<_>>()?,
            scores: scores.iter().map(|name| numbers(name, "filter.score")).collect::<Result<_>>()?,
            carried: carry
                .iter()
                .map(|name| column_request(name, "source.carry").find_in(batch).cloned())
                .collect::<Result<_>>()?,
            source_errors: read_source_errors(batch)?,
            ids,
            rows,
            keys,
        })
    }

    /// The values of a row.
    ///
    /// # Errors
    /// Why the row is unreadable.
    pub fn pair(&self, row: usize) -> Result<Pair<'_>, RowError> {
        if let Some(errors) = self.source_errors.as_ref().filter(|errors| errors.is_valid(row)) {
            return Err(RowError::Source(errors.value(row).to_owned()));
        }
        for number in &self.declared {
            number.get(row)?;
        }
        let scores = self.scores.iter().map(|score| score.get(row)).collect::<Result<_, _>>()?;
        let url = self.urls.as_ref().filter(|urls| urls.is_valid(row)).map(|urls| urls.value(row));
        let (image, caption) = (self.images.get(row), self.captions.get(row)?);
        Ok(Pair { image, caption, scores, key: self.keys.value(row), url })
    }
}

const BATCH: &str = "the batch";

fn column_request<'a>(column: &'a str, config_key: &'a str) -> ColumnRequest<'a> {
    ColumnRequest { file: BATCH, column, config_key }
}

/// Reads the key column; without one, or for null keys, keys are made from the row index.
fn read_keys(batch: &RecordBatch, configured: Option<&str>, rows: &UInt64Array) -> Result<StringArray> {
    let request = column_request(configured.unwrap_or("key"), "source.columns.key");
    if configured.is_none() && batch.column_by_name(request.column).is_none() {
        return Ok(StringArray::from_iter_values(rows.values().iter().map(|row| format!("table#{row}"))));
    }
    let column = request.find_in(batch)?;
    request.check_type(column.data_type())?;
    let text = arrow::compute::cast(column, &DataType::Utf8)?;
    let text = text.as_string::<i32>();
    if text.null_count() == 0 {
        return Ok(text.clone());
    }
    let named = text.iter().zip(rows.values());
    Ok(StringArray::from_iter_values(
        named.map(|(key, row)| key.map_or(format!("table#{row}"), str::to_owned)),
    ))
}

fn read_urls(batch: &RecordBatch, column: &str) -> Result<StringArray> {
    let request = column_request(column, "source.columns.url");
    let column = request.find_in(batch)?;
    request.check_type(column.data_type())?;
    Ok(arrow::compute::cast(column, &DataType::Utf8)?.as_string().clone())
}

/// Reads why the source could not read rows, if the batch has that column.
fn read_source_errors(batch: &RecordBatch) -> Result<Option<StringArray>> {
    let Some(column) = batch.column_by_name(SOURCE_ERROR) else { return Ok(None) };
    let texts = column.as_string_opt::<i32>().cloned().ok_or_else(|| Error::ColumnType {
        file: BATCH.into(),
        column: SOURCE_ERROR.into(),
        config_key: "Prepare".into(),
        found: column.data_type().to_string(),
        expected: "Utf8, or no such column at all",
    })?;
    Ok(Some(texts))
}

/// Reads a column that the source's reader adds.
fn read_unsigned(column: &Arc<dyn Array>, name: &str) -> Result<UInt64Array> {
    let numbers = column.as_primitive_opt::<UInt64Type>().filter(|numbers| numbers.null_count() == 0);
    numbers.cloned().ok_or_else(|| Error::ColumnType {
        file: BATCH.into(),
        column: name.into(),
        config_key: "Prepare".into(),
        found: format!("{} with {} nulls", column.data_type(), column.null_count()),
        expected: "UInt64 without nulls, or no such column at all",
    })
}
