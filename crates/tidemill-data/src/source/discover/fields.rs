//! The fields of a container's first file.

use arrow::datatypes::DataType;
use serde_json::Value;
use tidemill_io::block_on;

use super::container::Container;
use crate::columns::typed::is_binary;
use crate::decode::IMAGE_EXTENSIONS;
use crate::error::{Error, Result};
use crate::source::config::Format;
use crate::source::object_stream::ObjectStream;
use crate::source::pair_source::MAX_BATCH_BYTES;
use crate::source::parquet::Footer;
use crate::source::records::csv::CsvRecords;
use crate::source::records::jsonl::JsonLines;
use crate::source::records::record::Record;
use crate::source::units::InputFile;
use crate::source::webdataset::Samples;

/// Rows that are looked at where fields have no types.
const ROWS: usize = 32;

/// A field of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// What its values are.
    pub kind: FieldKind,
}

/// What the values of a field are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldKind {
    /// Bytes of an image, or Hugging Face's struct of bytes and path.
    ImageBytes,
    /// Text that names an image: a path or URL.
    ImageName,
    /// Other text, and its mean length in characters; 0 if it is not known.
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

/// The fields of the first file, and the number of its rows if it is known without reading them.
///
/// # Errors
/// If the file cannot be read.
pub fn read_fields(container: &Container) -> Result<(Vec<Field>, Option<u64>)> {
    let file = InputFile {
        uri: container.first.clone(),
        size: container.first_bytes,
        identity: String::new(),
        e_tag: None,
    };
    if container.format == Format::Parquet {
        return read_schema(&file);
    }
    let records = first_records(&file, container.format)?;
    let mut names: Vec<&String> = Vec::new();
    for record in &records {
        names.extend(record.fields.keys().filter(|name| !names.contains(name)).collect::<Vec<_>>());
    }
    let kind = |name: &String| {
        let values = records.iter().filter_map(|record| record.fields.get(name));
        kind_of_values(&values.filter(|value| !value.is_null()).collect::<Vec<_>>())
    };
    Ok((names.into_iter().map(|name| Field { name: name.clone(), kind: kind(name) }).collect(), None))
}

fn read_schema(file: &InputFile) -> Result<(Vec<Field>, Option<u64>)> {
    let footer = block_on(Footer::open(file))?;
    let kind = |data_type: &DataType| match data_type {
        binary if is_binary(binary) => FieldKind::ImageBytes,
        DataType::Struct(fields) if fields.iter().any(|field| field.name() == "bytes") => {
            FieldKind::ImageBytes
        }
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Dictionary(..) => {
            FieldKind::Text(0)
        }
        number if number.is_numeric() => FieldKind::Number,
        _ => FieldKind::Other,
    };
    let fields = footer.schema().fields().iter();
    let fields = fields.map(|field| Field { name: field.name().clone(), kind: kind(field.data_type()) });
    Ok((fields.collect(), footer.row_groups().last().map(|rows| rows.end)))
}

fn first_records(file: &InputFile, format: Format) -> Result<Vec<Record>> {
    let stream = ObjectStream::open(tidemill_io::runtime()?, file, 0..0, MAX_BATCH_BYTES)?;
    let failure = stream.failure();
    let records: Vec<Record> = match format {
        Format::Csv => {
            let records = CsvRecords::new(stream).map_err(|problem| {
                failure.take().unwrap_or_else(|| Error::Read { file: file.uri.clone(), problem })
            })?;
            records.take(ROWS).collect()
        }
        Format::Jsonl | Format::Images => JsonLines::new(stream, 0..file.size).take(ROWS).collect(),
        Format::WebDataset | Format::Parquet => Samples::new(stream).take(ROWS).collect(),
    };
    failure.take().map_or(Ok(records), Err)
}

fn kind_of_values(values: &[&Value]) -> FieldKind {
    if values.iter().any(|value| !(value.is_string() || value.is_number())) {
        return FieldKind::Other;
    }
    let texts: Vec<&str> = values.iter().filter_map(|value| value.as_str()).collect();
    // In CSV, numbers are text as well.
    if texts.iter().all(|text| text.trim().parse::<f64>().is_ok()) {
        return if values.is_empty() { FieldKind::Other } else { FieldKind::Number };
    }
    if 2 * texts.iter().filter(|text| is_image_name(text)).count() > texts.len() {
        return FieldKind::ImageName;
    }
    let characters: usize = texts.iter().map(|text| text.chars().count()).sum();
    FieldKind::Text(characters / texts.len().max(1))
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
            (json!([["a"], "b"]), FieldKind::Other),
            (json!([]), FieldKind::Other),
        ] {
            let values: Vec<&Value> = values.as_array().unwrap().iter().collect();
            assert_eq!(kind_of_values(&values), expected, "{values:?}");
        }
    }
}
