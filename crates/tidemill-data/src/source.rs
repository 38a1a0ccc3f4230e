//! Where pairs come from. A [`Source`] knows its files, cuts them into units of work and reads a unit as record
//! batches. Parquet is one implementation behind [`open`]; the containers whose rows are [`Record`]s share another,
//! and each has its parser, which needs nothing but bytes, in a module of its own.

pub mod csv;
pub mod jsonl;
pub mod webdataset;

mod changed;
mod claims;
mod fetch;
mod image_column;
mod image_folder;
mod json;
mod list;
pub(crate) mod object;
mod parquet;
mod record;
mod records;
mod row_groups;
mod stream;
mod tar;

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringArray, UInt64Array};
use arrow::datatypes::{DataType, Field, Float64Type, Schema, SchemaRef};
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

pub use self::list::list;
pub use self::parquet::ParquetSource;
pub use self::record::Record;
pub use self::records::RecordSource;
use crate::caption::config::CaptionConfig;
use crate::columns::as_written;
use crate::config::{FilterConfig, Format, SourceConfig};
use crate::error::{Error, Result};

/// An object of a source, as listed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct InputFile {
    /// Absolute path of a local file, or URI.
    pub uri: String,
    /// Bytes.
    pub size: u64,
    /// Digest (hex) of the size, the entity tag (local files: head and tail) and the name below the fixed part of the
    /// source's URI: the same wherever the file lies, another when its content changes.
    pub identity: String,
    /// The remote object's entity tag, by which a replaced one is known; no part of any identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub e_tag: Option<String>,
}

/// A unit of work: a stretch of one file. Whoever has the unit and the configuration can read it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct InputUnit {
    /// The file.
    pub file: InputFile,
    /// Which part of it.
    pub span: Span,
    /// Bytes that reading it holds at a time because the container leaves no choice: of a Parquet file the heaviest
    /// row group, as it is stored and, where it must be unpacked, unpacked once.
    pub held: u64,
}

/// A stretch of a file, in what its format can be cut by.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Span {
    /// Row indices: Parquet, whose footer knows them.
    Rows(Range<u64>),
    /// Byte offsets: everything else. A line belongs to the unit in which its first byte lies; how many rows there
    /// are is known only after reading.
    Bytes(Range<u64>),
}

impl InputUnit {
    /// Another part of the same file.
    fn part(&self, span: Span) -> Self {
        Self { span, ..self.clone() }
    }
}

impl Span {
    /// Start and end, whatever they count.
    pub fn range(&self) -> &Range<u64> {
        match self {
            Self::Rows(range) | Self::Bytes(range) => range,
        }
    }

    /// The number of rows, where it is known without reading.
    pub fn rows(&self) -> Option<u64> {
        match self {
            Self::Rows(range) => Some(range.end - range.start),
            Self::Bytes(_) => None,
        }
    }
}

/// The batches of one unit, in row order.
pub type Batches = Box<dyn Iterator<Item = Result<RecordBatch>> + Send>;

/// An optional column (Utf8) of batches: why the source could not make a whole row, as `kind: detail`, null where it
/// could. `Prepare` quarantines a row with such a text before it looks at anything else of it.
pub const SOURCE_ERROR: &str = "source_error";

/// Encoded bytes after which a batch ends, however few its rows are, and most of what is read ahead, unless less is
/// allowed. One image may exceed them.
const BATCH_BYTES: u64 = 64 << 20;

/// A place that pairs come from.
///
/// Batches hold the columns that the configuration needs, each under its own name, with `sample_id` and `source_row`
/// (UInt64) and the key column (Utf8, never null; named `key` if the source has none) in front, and perhaps
/// [`SOURCE_ERROR`] at the end. `source_row` is the row's index in a Parquet file, the sample's in a tar, and the
/// offset of a line's first byte in a text file: unique in its file, ascending, and the same however it is cut.
pub trait Source: Send + Sync {
    /// The files, ordered as the configuration lists them and by URI within one glob.
    fn files(&self) -> &[InputFile];

    /// The schema of every batch.
    fn schema(&self) -> SchemaRef;

    /// Cuts all files into units, in order. Checks every file on the way, so that a broken one is refused before the
    /// run starts.
    ///
    /// # Errors
    /// If a file is unreadable or lacks a column, or if there are no rows at all.
    fn units(&self) -> Result<Vec<InputUnit>>;

    /// Reads one unit, fetching only the columns and rows that it needs. A batch has about `room` bytes at most, and as
    /// many may be read ahead of it, beside [`InputUnit::held`]. More than this only one image may have.
    ///
    /// # Errors
    /// If the file cannot be opened; each batch may fail on its own later.
    fn read_within(&self, unit: &InputUnit, room: u64) -> Result<Batches>;

    /// As [`read_within`](Self::read_within), with room for large batches.
    ///
    /// # Errors
    /// As [`read_within`](Self::read_within).
    fn read(&self, unit: &InputUnit) -> Result<Batches> {
        self.read_within(unit, BATCH_BYTES)
    }

    /// A unit cut into stretches of about a batch, each of which can be read alone; the unit itself where its container can only
    /// be read from its beginning.
    fn stretches(&self, unit: &InputUnit) -> Vec<InputUnit> {
        vec![unit.clone()]
    }

    /// As [`read`](Self::read), with nulls for the images, if the container can be read without fetching them.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn read_without_images(&self, _unit: &InputUnit) -> Result<Option<Batches>> {
        Ok(None)
    }
}

/// Opens the source that a configuration describes, with the columns that filters and templates look at.
///
/// # Errors
/// If the configuration is invalid, no file matches, or the first file lacks a column or has it in a wrong type.
pub fn open(
    config: &SourceConfig,
    filter: &FilterConfig,
    caption: &CaptionConfig,
) -> Result<Box<dyn Source>> {
    config.validate()?;
    filter.validate()?;
    filter.validate_source(config)?;
    caption.validate(&config.columns)?;
    let source: Box<dyn Source> = match config.format {
        Format::Parquet => Box::new(ParquetSource::open(config, filter, caption)?),
        Format::WebDataset | Format::Jsonl | Format::Csv | Format::Images => {
            Box::new(RecordSource::open(config, filter, caption)?)
        }
    };
    if let Some(condition) = filter.expression()? {
        condition.check(&source.schema())?;
    }
    Ok(source)
}

/// Every column that must be read, each once, with the configuration key that asks for it.
pub(crate) fn needed_columns(
    config: &SourceConfig,
    filter: &FilterConfig,
    caption: &CaptionConfig,
) -> Result<Vec<(String, String)>> {
    let columns = &config.columns;
    let one = |name: &Option<String>, part| name.clone().map(|name| (name, part));
    let parts = [(columns.image.clone(), "image")]
        .into_iter()
        .chain(columns.caption.as_slice().iter().map(|name| (name.clone(), "caption")))
        .chain(one(&columns.key, "key"))
        .chain(one(&columns.width, "width"))
        .chain(one(&columns.height, "height"))
        .chain(one(&columns.url, "url"))
        .map(|(name, part)| (name, format!("source.columns.{part}")));
    let carried = config.carry.iter().map(|name| (name.clone(), "source.carry".to_owned()));
    let scores = filter.score.keys().map(|name| (name.clone(), "filter.score".to_owned()));
    let condition = filter.expression().ok().flatten();
    let compared = condition.iter().flat_map(|condition| {
        condition.columns().into_iter().map(|name| (name.clone(), condition.place_of(&name)))
    });
    let mut needed: Vec<(String, String)> = Vec::new();
    let fields = caption.columns()?.into_iter().map(|name| (name, "caption.template".to_owned()));
    for (name, wanted_by) in parts.chain(carried).chain(scores).chain(fields).chain(compared) {
        if needed.iter().all(|(known, _)| *known != name) {
            needed.push((name, wanted_by));
        }
    }
    Ok(needed)
}

/// The 64-bit id of a row: XXH3 of its file's identity (or its key) and its index there.
pub fn sample_id(identity: &str, row: u64) -> u64 {
    let mut bytes = Vec::with_capacity(identity.len() + 8);
    bytes.extend_from_slice(identity.as_bytes());
    bytes.extend_from_slice(&row.to_le_bytes());
    XxHash3_64::oneshot(&bytes)
}

/// The name of the key column in batches.
pub(crate) fn key_name(config: &SourceConfig) -> &str {
    config.columns.key.as_deref().unwrap_or("key")
}

/// The schema of batches, given the fields of the columns read.
fn identified_schema(columns: &Schema, key: &str) -> SchemaRef {
    let own = [("sample_id", DataType::UInt64), ("source_row", DataType::UInt64), (key, DataType::Utf8)];
    let own = own.into_iter().map(|(name, data_type)| Arc::new(Field::new(name, data_type, false)));
    let rest = columns.fields().iter().filter(|field| field.name() != key).cloned();
    Arc::new(Schema::new(own.chain(rest).collect::<Vec<_>>()))
}

/// Refuses a source without a single unit.
fn some_units(units: Vec<InputUnit>, files: &[InputFile]) -> Result<Vec<InputUnit>> {
    if units.is_empty() {
        let file = files.iter().map(|file| file.uri.as_str()).collect::<Vec<_>>().join(", ");
        return Err(Error::Read { file, problem: "there are no rows at all".into() });
    }
    Ok(units)
}

/// Puts `sample_id`, `source_row` and a complete key column in front of a batch that starts at `first_row`.
fn identify(
    batch: &RecordBatch,
    file: &InputFile,
    first_row: u64,
    schema: &SchemaRef,
) -> Result<RecordBatch> {
    let rows = first_row..first_row + batch.num_rows() as u64;
    let key = schema.field(2).name();
    let ids = UInt64Array::from_iter_values(rows.clone().map(|row| sample_id(&file.identity, row)));
    let keys = match batch.column_by_name(key) {
        Some(column) => complete_keys(column, file, key, first_row)?,
        None => StringArray::from_iter_values(rows.clone().map(|row| format!("{}#{row}", file.uri))),
    };
    let mut columns: Vec<ArrayRef> =
        vec![Arc::new(ids), Arc::new(UInt64Array::from_iter_values(rows)), Arc::new(keys)];
    for field in schema.fields().iter().skip(3) {
        let column = batch.column_by_name(field.name()).ok_or_else(|| Error::Read {
            file: file.uri.clone(),
            problem: format!("column `{}` has vanished; the file changed while it was read", field.name()),
        })?;
        columns.push(as_first(column, field.data_type())?);
    }
    RecordBatch::try_new(schema.clone(), columns).map_err(|e| Error::Read {
        file: file.uri.clone(),
        problem: format!("its columns differ from those of the source's first file: {e}"),
    })
}

/// Whether values of one type are values of another, as writers of several files have them: texts and bytes of either length, and
/// integers where the first file has numbers with fractions (as pandas writes them where one is missing), or larger ones; floats of 32
/// bits as they are written.
fn goes_into(from: &DataType, to: &DataType) -> bool {
    let texts = [DataType::Utf8, DataType::LargeUtf8, DataType::Utf8View];
    let bytes = [DataType::Binary, DataType::LargeBinary, DataType::BinaryView];
    let numbers = match to {
        DataType::Int64 => from.is_signed_integer(),
        DataType::Float64 => from.is_integer() || *from == DataType::Float32,
        _ => false,
    };
    from == to || numbers || [texts, bytes].iter().any(|kinds| kinds.contains(from) && kinds.contains(to))
}

/// A column as the first file has it, if it [goes into](goes_into) that.
fn as_first(column: &ArrayRef, to: &DataType) -> Result<ArrayRef> {
    if !goes_into(column.data_type(), to) {
        return Ok(column.clone());
    }
    let values = arrow::compute::cast(column, to)?;
    Ok(match (column.data_type(), to) {
        (DataType::Float32, DataType::Float64) => {
            Arc::new(values.as_primitive::<Float64Type>().unary::<_, Float64Type>(as_written))
        }
        _ => values,
    })
}

/// Keys as strings, `<file>#<row>` where they are null.
fn complete_keys(column: &ArrayRef, file: &InputFile, key: &str, first_row: u64) -> Result<StringArray> {
    let text = arrow::compute::cast(column, &DataType::Utf8).map_err(|_| Error::ColumnType {
        file: file.uri.clone(),
        column: key.to_owned(),
        wanted_by: "source.columns.key".into(),
        found: column.data_type().to_string(),
        expected: "strings or integers",
    })?;
    let text = text.as_string::<i32>();
    if text.null_count() == 0 {
        return Ok(text.clone());
    }
    let keys = (0..text.len()).zip(first_row..).map(|(i, row)| match text.is_valid(i) {
        true => text.value(i).to_owned(),
        false => format!("{}#{row}", file.uri),
    });
    Ok(StringArray::from_iter_values(keys))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::OneOrMany;

    #[test]
    fn ids_differ_by_row_and_by_file() {
        let ids = [sample_id("a", 0), sample_id("a", 1), sample_id("b", 0)];
        assert_eq!(ids, [sample_id("a", 0), sample_id("a", 1), sample_id("b", 0)]);
        assert!(ids[0] != ids[1] && ids[0] != ids[2] && ids[1] != ids[2]);
    }

    #[test]
    fn a_column_with_two_uses_is_read_once() {
        let config = SourceConfig { carry: vec!["score".into()], ..SourceConfig::default() };
        let filter = FilterConfig {
            score: [("score".to_owned(), Default::default())].into(),
            condition: Some("nsfw = 'no' and score > 1 or nsfw is null".into()),
            ..FilterConfig::default()
        };
        let template = OneOrMany::One("{caption} by {artist}, {score}".into());
        let caption = CaptionConfig { template, ..CaptionConfig::default() };
        let needed = needed_columns(&config, &filter, &caption).unwrap();
        let names: Vec<_> = needed.into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["image", "caption", "score", "artist", "nsfw"]);
    }
}
