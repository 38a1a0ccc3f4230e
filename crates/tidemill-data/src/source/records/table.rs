//! Rows of containers whose fields have no types of their own, and the record batches they become. The batches'
//! schema follows from the configuration alone.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Builder, LargeBinaryBuilder, RecordBatch, StringBuilder, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use serde_json::Value;

use crate::columns::names::SOURCE_ERROR;
use crate::error::Result;
use crate::filter::config::FilterConfig;
use crate::source::batch_schema::{identified_schema, key_name};
use crate::source::config::SourceConfig;
use crate::source::pair_source::Batches;
use crate::source::records::record::Record;
use crate::source::sample_id::sample_id;
use crate::source::units::{InputFile, InputUnit};

/// What a column takes from a field.
enum Part {
    Image,
    /// A string or a number, as text; anything else is an error of the row.
    Text,
    /// A number, or text that is one.
    Number,
    /// Text as it is, anything else as JSON.
    Json,
}

/// The batches' columns.
pub(crate) struct Table {
    schema: SchemaRef,
    key: Option<String>,
    /// The parts of the columns between the key and [`SOURCE_ERROR`].
    parts: Vec<Part>,
    rows_per_batch: usize,
}

impl Table {
    /// The columns that the configuration needs, each with the key that asks for it.
    pub fn new(config: &SourceConfig, filter: &FilterConfig, needed: &[(String, String)]) -> Self {
        let columns = &config.columns;
        let is = |column: &Option<String>, name: &str| column.as_deref() == Some(name);
        let part = |name: &str| match name {
            _ if name == columns.image => Part::Image,
            _ if columns.caption.as_slice().iter().any(|caption| caption == name) => Part::Text,
            _ if is(&columns.width, name) || is(&columns.height, name) => Part::Number,
            _ if filter.score.contains_key(name) => Part::Number,
            _ => Part::Json,
        };
        let key = key_name(config);
        let names = || needed.iter().map(|(name, _)| name.as_str()).filter(|name| *name != key);
        let mut fields: Vec<Field> =
            names().map(|name| Field::new(name, part(name).data_type(), true)).collect();
        fields.push(Field::new(SOURCE_ERROR, DataType::Utf8, true));
        Self {
            schema: identified_schema(&Schema::new(fields), key),
            key: columns.key.clone(),
            parts: names().map(part).collect(),
            rows_per_batch: config.rows_per_batch,
        }
    }

    pub fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    pub fn rows_per_batch(&self) -> usize {
        self.rows_per_batch
    }

    /// The records of a unit as batches of at most the configured rows, and not much more than `room` bytes.
    pub fn batches(
        self: Arc<Self>,
        unit: &InputUnit,
        room: u64,
        mut records: impl Iterator<Item = Result<Record>> + Send + 'static,
    ) -> Batches {
        let file = unit.file.clone();
        Box::new(std::iter::from_fn(move || {
            let (mut rows, mut bytes) = (Vec::new(), 0);
            while rows.len() < self.rows_per_batch && bytes < room {
                match records.next() {
                    Some(Ok(record)) => {
                        bytes += record.bytes() as u64;
                        rows.push(record);
                    }
                    Some(Err(error)) => return Some(Err(error)),
                    None => break,
                }
            }
            (!rows.is_empty()).then(|| self.batch(&file, rows))
        }))
    }

    fn batch(&self, file: &InputFile, mut records: Vec<Record>) -> Result<RecordBatch> {
        let rows = UInt64Array::from_iter_values(records.iter().map(|record| record.row));
        let ids = rows.values().iter().map(|row| sample_id(&file.identity, *row));
        let ids = UInt64Array::from_iter_values(ids);
        let mut columns: Vec<ArrayRef> = vec![Arc::new(ids), Arc::new(rows), self.keys(file, &mut records)];
        for (part, field) in self.parts.iter().zip(self.schema.fields().iter().skip(3)) {
            columns.push(part.column(field.name(), &mut records));
        }
        let mut errors = StringBuilder::new();
        records.iter().for_each(|record| errors.append_option(record.error.as_deref()));
        columns.push(Arc::new(errors.finish()));
        Ok(RecordBatch::try_new(self.schema(), columns)?)
    }

    /// The configured field, else the container's name of the row, else `<file>#<row>`.
    fn keys(&self, file: &InputFile, records: &mut [Record]) -> ArrayRef {
        let mut keys = StringBuilder::new();
        for record in records {
            let given = self.key.as_ref().and_then(|name| or_fail(record, name, text));
            let given = given.or_else(|| record.key.clone());
            keys.append_value(given.unwrap_or_else(|| format!("{}#{}", file.uri, record.row)));
        }
        Arc::new(keys.finish())
    }
}

impl Part {
    fn data_type(&self) -> DataType {
        match self {
            Self::Image => DataType::LargeBinary,
            Self::Text | Self::Json => DataType::Utf8,
            Self::Number => DataType::Float64,
        }
    }

    fn column(&self, name: &str, records: &mut [Record]) -> ArrayRef {
        match self {
            Self::Image => {
                let mut images = LargeBinaryBuilder::new();
                records.iter().for_each(|record| images.append_option(record.image.as_ref()));
                Arc::new(images.finish())
            }
            Self::Text => strings(records, |record| or_fail(record, name, text)),
            Self::Json => strings(records, |record| or_fail(record, name, json)),
            Self::Number => {
                let mut numbers = Float64Builder::new();
                records.iter_mut().for_each(|record| numbers.append_option(or_fail(record, name, number)));
                Arc::new(numbers.finish())
            }
        }
    }
}

fn strings(records: &mut [Record], mut get: impl FnMut(&mut Record) -> Option<String>) -> ArrayRef {
    let mut strings = StringBuilder::new();
    records.iter_mut().for_each(|record| strings.append_option(get(record)));
    Arc::new(strings.finish())
}

/// A field's value; null if there is no such field, or if it does not do, which the record then says.
fn or_fail<T>(record: &mut Record, name: &str, read: fn(&Value) -> Result<T, String>) -> Option<T> {
    if let Some((_, problem)) = record.unreadable.iter().find(|(field, _)| *field == name) {
        record.fail((*problem).to_owned());
        return None;
    }
    let value = record.fields.get(name).filter(|value| !value.is_null())?;
    match read(value) {
        Ok(value) => Some(value),
        Err(problem) => {
            record.fail(format!("{problem} in field `{name}`"));
            None
        }
    }
}

pub(crate) fn text(value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        other => Err(format!("type: {} where text belongs", kind(other))),
    }
}

fn number(value: &Value) -> Result<f64, String> {
    match value {
        Value::Number(number) => number.as_f64().ok_or_else(|| format!("number: {number}")),
        Value::String(text) => text.trim().parse().map_err(|_| format!("number: the text {text:?}")),
        other => Err(format!("type: {} where a number belongs", kind(other))),
    }
}

fn json(value: &Value) -> Result<String, String> {
    Ok(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}
