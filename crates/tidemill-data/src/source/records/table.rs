//! Converts records to record batches. The batches' schema follows from the configuration alone.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, Float64Builder, LargeBinaryBuilder, ListBuilder, RecordBatch, StringBuilder, UInt64Array,
};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use serde_json::Value;

use crate::columns::names::SOURCE_ERROR;
use crate::error::Result;
use crate::filter::config::FilterConfig;
use crate::source::batch_schema::{build_batch_schema, key_column_name};
use crate::source::config::SourceConfig;
use crate::source::pair_source::Batches;
use crate::source::records::record::Record;
use crate::source::records::sample::CAPTION_EXTENSIONS;
use crate::source::sample_id::sample_id;
use crate::source::units::{InputFile, InputUnit};

/// How a column is made from a field.
enum ColumnKind {
    Image,
    /// A string or a number, as text; anything else is an error of the row.
    Text,
    /// A list of such texts, or one of them.
    Texts,
    /// A number, or text that is one.
    Number,
    /// Text as it is, anything else as JSON.
    Json,
}

/// The columns of the batches.
pub(crate) struct RecordTable {
    schema: SchemaRef,
    key: Option<String>,
    captions: Vec<String>,
    /// The kinds of the columns between the key and [`SOURCE_ERROR`].
    kinds: Vec<ColumnKind>,
    rows_per_batch: usize,
}

impl RecordTable {
    /// The columns that the configuration needs, each with the key that names it. `lists` are the
    /// columns of captions that hold lists.
    pub fn new(
        config: &SourceConfig,
        filter: &FilterConfig,
        needed: &[(String, String)],
        lists: &HashSet<String>,
    ) -> Self {
        let columns = &config.columns;
        let is = |column: &Option<String>, name: &str| column.as_deref() == Some(name);
        let kind = |name: &str| match name {
            _ if name == columns.image => ColumnKind::Image,
            _ if lists.contains(name) => ColumnKind::Texts,
            _ if columns.caption.as_slice().iter().any(|caption| caption == name) => ColumnKind::Text,
            _ if is(&columns.width, name) || is(&columns.height, name) => ColumnKind::Number,
            _ if filter.score.contains_key(name) => ColumnKind::Number,
            _ => ColumnKind::Json,
        };
        let key = key_column_name(config);
        let names = || needed.iter().map(|(name, _)| name.as_str()).filter(|name| *name != key);
        let mut fields: Vec<Field> =
            names().map(|name| Field::new(name, kind(name).data_type(), true)).collect();
        fields.push(Field::new(SOURCE_ERROR, DataType::Utf8, true));
        Self {
            schema: build_batch_schema(&Schema::new(fields), key),
            key: columns.key.clone(),
            captions: columns.caption.as_slice().to_vec(),
            kinds: names().map(kind).collect(),
            rows_per_batch: config.rows_per_batch,
        }
    }

    pub fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    pub fn rows_per_batch(&self) -> usize {
        self.rows_per_batch
    }

    /// The records of a unit as batches of at most the configured rows, and not much more than
    /// `max_bytes`.
    pub fn batches(
        self: Arc<Self>,
        unit: &InputUnit,
        max_bytes: u64,
        mut records: impl Iterator<Item = Result<Record>> + Send + 'static,
    ) -> Batches {
        let file = unit.file.clone();
        Box::new(std::iter::from_fn(move || {
            let (mut rows, mut bytes) = (Vec::new(), 0);
            while rows.len() < self.rows_per_batch && bytes < max_bytes {
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
        records.iter_mut().for_each(|record| self.explain_missing_parts(record));
        let rows = UInt64Array::from_iter_values(records.iter().map(|record| record.row));
        let ids = rows.values().iter().map(|row| sample_id(&file.identity, *row));
        let ids = UInt64Array::from_iter_values(ids);
        let mut columns: Vec<ArrayRef> = vec![Arc::new(ids), Arc::new(rows), self.keys(file, &mut records)];
        for (kind, field) in self.kinds.iter().zip(self.schema.fields().iter().skip(3)) {
            columns.push(kind.column(field.name(), &mut records));
        }
        let mut errors = StringBuilder::new();
        records.iter().for_each(|record| errors.append_option(record.error.as_deref()));
        columns.push(Arc::new(errors.finish()));
        Ok(RecordBatch::try_new(self.schema(), columns)?)
    }

    /// Says which files a sample has, if its image or all captions are missing among them.
    fn explain_missing_parts(&self, record: &mut Record) {
        let Some(missing) = self.missing_part(record) else { return };
        let members = record.members.iter().map(|extension| format!(".{extension}"));
        let members = members.collect::<Vec<_>>().join(", ");
        let hint = match record.is_repeated {
            true => "; its key has come before: the members of a sample must be neighbours (tar --sort=name)",
            false => "",
        };
        record
            .set_error(format!("missing: the {missing} is null; the sample's files end in {members}{hint}"));
    }

    /// The part of a sample for which it has no file. A blank caption is no missing file.
    fn missing_part(&self, record: &Record) -> Option<&'static str> {
        let has_caption = |name: &String| record.field(name).is_some_and(|value| !value.is_null());
        let is_caption = |extension: &String| CAPTION_EXTENSIONS.contains(&extension.as_str());
        match record.members.as_slice() {
            [] => None,
            _ if record.image.is_none() => Some("image"),
            members if members.iter().any(is_caption) || self.captions.iter().any(has_caption) => None,
            _ => Some("caption"),
        }
    }

    /// The configured field, else the container's name of the row, else `<file>#<row>`.
    fn keys(&self, file: &InputFile, records: &mut [Record]) -> ArrayRef {
        let mut keys = StringBuilder::new();
        for record in records {
            let key = self.key.as_ref().and_then(|name| read_field(record, name, to_text));
            let key = key.or_else(|| record.key.clone());
            keys.append_value(key.unwrap_or_else(|| format!("{}#{}", file.uri, record.row)));
        }
        Arc::new(keys.finish())
    }
}

impl ColumnKind {
    fn data_type(&self) -> DataType {
        match self {
            Self::Image => DataType::LargeBinary,
            Self::Text | Self::Json => DataType::Utf8,
            Self::Texts => DataType::List(Arc::new(Field::new_list_field(DataType::Utf8, true))),
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
            Self::Text => build_strings(records, |record| read_field(record, name, to_text)),
            Self::Texts => {
                let mut lists = ListBuilder::new(StringBuilder::new());
                records.iter_mut().for_each(|record| lists.append_option(read_field(record, name, to_texts)));
                Arc::new(lists.finish())
            }
            Self::Json => build_strings(records, |record| read_field(record, name, to_json)),
            Self::Number => {
                let mut numbers = Float64Builder::new();
                records
                    .iter_mut()
                    .for_each(|record| numbers.append_option(read_field(record, name, to_number)));
                Arc::new(numbers.finish())
            }
        }
    }
}

fn build_strings(records: &mut [Record], mut get: impl FnMut(&mut Record) -> Option<String>) -> ArrayRef {
    let mut strings = StringBuilder::new();
    records.iter_mut().for_each(|record| strings.append_option(get(record)));
    Arc::new(strings.finish())
}

/// Reads a field. Returns `None` if there is no such field, or if its value is invalid, which sets
/// the record's error.
fn read_field<T>(record: &mut Record, name: &str, read: fn(&Value) -> Result<T, String>) -> Option<T> {
    if let Some((_, problem)) = record.unreadable.iter().find(|(field, _)| *field == name) {
        record.set_error((*problem).to_owned());
        return None;
    }
    let value = record.field(name).filter(|value| !value.is_null())?;
    match read(&value) {
        Ok(value) => Some(value),
        Err(problem) => {
            record.set_error(format!("{problem} in field `{name}`"));
            None
        }
    }
}

pub(crate) fn to_text(value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        other => Err(format!("type: {} where text belongs", type_name(other))),
    }
}

/// The texts of a list, without its nulls; a single text is a list of one.
fn to_texts(value: &Value) -> Result<Vec<Option<String>>, String> {
    let Value::Array(items) = value else { return Ok(vec![Some(to_text(value)?)]) };
    items.iter().map(|item| if item.is_null() { Ok(None) } else { to_text(item).map(Some) }).collect()
}

fn to_number(value: &Value) -> Result<f64, String> {
    match value {
        Value::Number(number) => number.as_f64().ok_or_else(|| format!("number: {number}")),
        Value::String(text) => text.trim().parse().map_err(|_| format!("number: the text {text:?}")),
        other => Err(format!("type: {} where a number belongs", type_name(other))),
    }
}

fn to_json(value: &Value) -> Result<String, String> {
    Ok(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}
