//! The fields of a container's first file.

use arrow::datatypes::{DataType, Schema};
use serde_json::{Map, Value};
use tidemill_io::block_on;

use super::container::Container;
use crate::caption::config::CaptionConfig;
use crate::columns::typed::{is_binary, is_text, is_text_list};
use crate::decode::IMAGE_EXTENSIONS;
use crate::error::Result;
use crate::filter::config::FilterConfig;
use crate::source::arrow_ipc::IpcIndex;
use crate::source::config::{Format, SourceConfig};
use crate::source::image_files::ImageFileSource;
use crate::source::parquet::Footer;
use crate::source::records::image_folder::metadata_extension;
use crate::source::records::reader::{FIRST_SAMPLES, RecordOptions, first_records};
use crate::source::records::record::Record;

/// A field of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// What its values are.
    pub kind: FieldKind,
    /// Their type: Arrow's name, or that of JSON where fields have no types.
    pub type_name: String,
}

/// What the values of a field are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldKind {
    /// Bytes of an image, or Hugging Face's struct of bytes and path. Of a list of images, the first
    /// item is such a field.
    ImageBytes,
    /// Text that names an image: a path or URL.
    ImageName,
    /// Other text, or a list of texts, and the mean length in characters; 0 if it is not known.
    Text(usize),
    /// Numbers.
    Number,
    /// Anything else.
    Other,
}

impl FieldKind {
    /// Whether the values are text that names no image.
    pub fn is_text(self) -> bool {
        self.text_length().is_some()
    }

    /// The mean length of text.
    pub fn text_length(self) -> Option<usize> {
        if let Self::Text(characters) = self { Some(characters) } else { None }
    }
}

/// Most levels of nested fields that are looked into.
const MAX_DEPTH: usize = 3;

/// The fields of the first file, and the number of its rows if it is known without reading them.
///
/// # Errors
/// If the file cannot be read.
pub fn read_fields(container: &Container, config: &SourceConfig) -> Result<(Vec<Field>, Option<u64>)> {
    let file = container.first();
    match container.format {
        Format::Parquet => {
            let footer = block_on(Footer::open(&file))?;
            Ok((typed_fields(footer.schema()), footer.row_groups().last().map(|rows| rows.end)))
        }
        Format::Arrow => {
            let index = IpcIndex::read(&file)?;
            Ok((typed_fields(&index.schema), index.batches.last().map(|batch| batch.rows.end)))
        }
        Format::Images if metadata_extension(&file.uri).is_none() => {
            let (filter, caption) = (FilterConfig::default(), CaptionConfig::default());
            let records = ImageFileSource::open(config, &filter, &caption)?.first_records(FIRST_SAMPLES)?;
            Ok((untyped_fields(&records), None))
        }
        _ => Ok((untyped_fields(&first_records(&RecordOptions::new(config, &[]), &file)?), None)),
    }
}

/// The columns of a schema, and those within structs.
fn typed_fields(schema: &Schema) -> Vec<Field> {
    let mut fields = Vec::new();
    schema
        .fields()
        .iter()
        .for_each(|field| add_typed(&mut fields, field.name(), field.data_type(), MAX_DEPTH));
    fields
}

fn add_typed(fields: &mut Vec<Field>, name: &str, data_type: &DataType, depth: usize) {
    let kind = kind_of_type(data_type);
    fields.push(Field { name: name.to_owned(), kind, type_name: data_type.to_string() });
    match data_type {
        DataType::Struct(children) if kind == FieldKind::Other && depth > 0 => {
            for child in children {
                add_typed(fields, &format!("{name}.{}", child.name()), child.data_type(), depth - 1);
            }
        }
        DataType::List(item) | DataType::LargeList(item)
            if kind_of_type(item.data_type()) == FieldKind::ImageBytes =>
        {
            add_typed(fields, &format!("{name}[0]"), item.data_type(), 0);
        }
        _ => {}
    }
}

fn kind_of_type(data_type: &DataType) -> FieldKind {
    match data_type {
        binary if is_binary(binary) => FieldKind::ImageBytes,
        DataType::Struct(fields) if fields.iter().any(|field| field.name() == "bytes") => {
            FieldKind::ImageBytes
        }
        text if is_text(text) || is_text_list(text) => FieldKind::Text(0),
        number if number.is_numeric() => FieldKind::Number,
        _ => FieldKind::Other,
    }
}

/// The fields of some rows, and those within objects.
fn untyped_fields(records: &[Record]) -> Vec<Field> {
    let mut names: Vec<String> = Vec::new();
    for record in records {
        add_names(&mut names, "", &record.fields, MAX_DEPTH);
    }
    let field = |name: String| {
        let values: Vec<_> = records.iter().filter_map(|record| record.field(&name)).collect();
        let values: Vec<&Value> = values.iter().map(AsRef::as_ref).filter(|value| !value.is_null()).collect();
        let type_name = values.first().map_or("null", |value| json_type_name(value)).to_owned();
        Field { kind: kind_of_values(&values), type_name, name }
    };
    names.into_iter().map(field).collect()
}

fn add_names(names: &mut Vec<String>, prefix: &str, fields: &Map<String, Value>, depth: usize) {
    for (name, value) in fields {
        let name = format!("{prefix}{name}");
        if !names.contains(&name) {
            names.push(name.clone());
        }
        if let (Value::Object(children), 1..) = (value, depth) {
            add_names(names, &format!("{name}."), children, depth - 1);
        }
    }
}

fn json_type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "text",
        Value::Array(_) => "list",
        Value::Object(_) => "object",
    }
}

fn kind_of_values<'a>(values: &[&'a Value]) -> FieldKind {
    // Lists of texts count as texts: rows with one caption may have it as it is.
    if values.iter().any(|value| value.is_array()) {
        let first = |value: &'a Value| value.as_array().map_or(Some(value), |items| items.first());
        let texts = values.iter().filter_map(|value| first(value)).filter(|value| !value.is_array());
        let kind = kind_of_values(&texts.collect::<Vec<_>>());
        return if kind.is_text() { kind } else { FieldKind::Other };
    }
    if values.iter().any(|value| !(value.is_string() || value.is_number())) {
        return FieldKind::Other;
    }
    let texts: Vec<&str> = values.iter().filter_map(|value| value.as_str()).collect();
    // In CSV, numbers are text as well.
    if texts.iter().all(|text| is_number(text)) {
        return if values.is_empty() { FieldKind::Other } else { FieldKind::Number };
    }
    if 2 * texts.iter().filter(|text| is_image_name(text)).count() > texts.len() {
        return FieldKind::ImageName;
    }
    let characters: usize = texts.iter().map(|text| text.chars().count()).sum();
    FieldKind::Text(characters / texts.len().max(1))
}

/// Whether a text is a number. One with leading zeros is a name, such as of a shard.
fn is_number(text: &str) -> bool {
    let text = text.trim();
    let has_leading_zero = text.starts_with('0') && text[1..].starts_with(|next: char| next.is_ascii_digit());
    !has_leading_zero && text.parse::<f64>().is_ok()
}

/// Whether a text is a path or URL of an image.
fn is_image_name(text: &str) -> bool {
    let path = text.split(['?', '#']).next().unwrap_or(text);
    let extension = path.rsplit_once('.').map(|(_, extension)| extension.to_lowercase());
    extension.is_some_and(|extension| IMAGE_EXTENSIONS.contains(&extension.as_str())) && !path.contains(' ')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn kinds_follow_from_values() {
        for (values, expected) in [
            (json!(["img/1.jpg", "img/2.PNG"]), FieldKind::ImageName),
            (json!(["https://a.b/1.webp?w=3", "https://a.b/2"]), FieldKind::Text(17)),
            (json!(["a dog.jpg of a cat", "two"]), FieldKind::Text(10)),
            (json!(["512", " 3.5"]), FieldKind::Number),
            (json!([512, 3.5]), FieldKind::Number),
            (json!(["00000", "00001"]), FieldKind::Text(5)),
            (json!(["0", "0.5"]), FieldKind::Number),
            (json!([["a"], "b", []]), FieldKind::Text(1)),
            (json!([[["a"]]]), FieldKind::Other),
            (json!([["a dog", "a cat"], ["one"]]), FieldKind::Text(4)),
            (json!([[1, 2]]), FieldKind::Other),
            (json!([]), FieldKind::Other),
        ] {
            let values: Vec<&Value> = values.as_array().unwrap().iter().collect();
            assert_eq!(kind_of_values(&values), expected, "{values:?}");
        }
    }
}
