//! The source of all formats but Parquet: the parser of a container gives [`Record`]s, images that
//! they only name are fetched, and the records become batches.

use std::ops::Range;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use tokio::runtime::Runtime;

use crate::caption::config::CaptionConfig;
use crate::error::{Error, Result};
use crate::filter::config::FilterConfig;
use crate::source::changed_files::explain_read_errors;
use crate::source::config::{Format, SourceConfig};
use crate::source::fetch::ordered::{FetchResult, fetch_images, resolve_reference};
use crate::source::listing::list_files;
use crate::source::needed_columns::list_needed_columns;
use crate::source::object_stream::{ObjectStream, StreamFailure};
use crate::source::pair_source::{Batches, MAX_BATCH_BYTES, Source};
use crate::source::records::csv::CsvRecords;
use crate::source::records::image_folder::{self, FILE_NAME, METADATA};
use crate::source::records::jsonl::{self, JsonLines};
use crate::source::records::record::Record;
use crate::source::records::table::{RecordTable, to_text};
use crate::source::units::{InputFile, InputUnit, Span, require_units};
use crate::source::webdataset::Samples;

/// The rows of a unit as the parser gives them.
type Records = Box<dyn Iterator<Item = Record> + Send>;

/// WebDataset, JSON lines, CSV and image folders at one or several URIs.
pub struct RecordSource {
    format: Format,
    files: Vec<InputFile>,
    /// Name and configuration key of every column.
    needed: Vec<(String, String)>,
    /// The field that names the image.
    image: String,
    table: Arc<RecordTable>,
    rows_per_unit: u64,
    runtime: &'static Runtime,
}

impl RecordSource {
    /// Lists the files.
    ///
    /// # Errors
    /// If none matches, a URI cannot be listed, or the first file is a CSV that lacks a column.
    pub fn open(config: &SourceConfig, filter: &FilterConfig, caption: &CaptionConfig) -> Result<Self> {
        let runtime = tidemill_io::runtime()?;
        let is_image_folder = config.format == Format::Images;
        let is_wanted = |uri: &str| !is_image_folder || uri.rsplit('/').next() == Some(METADATA);
        let files = list_files(config.uri.as_slice(), is_wanted)?;
        if files.is_empty() {
            let problem = format!(
                "there is no {METADATA} in or below {}; it names each image (`{FILE_NAME}`) with its caption",
                config.uri.as_slice().join(", ")
            );
            return Err(Error::Config { key: "source.uri".into(), problem });
        }
        let image = match config.format {
            Format::Images => FILE_NAME.to_owned(),
            _ => config.columns.image.clone(),
        };
        let needed = list_needed_columns(config, filter, caption)?;
        let source = Self {
            format: config.format,
            files,
            image,
            table: Arc::new(RecordTable::new(config, filter, &needed)),
            needed,
            rows_per_unit: config.rows_per_unit,
            runtime,
        };
        if let (Format::Csv, Some(first)) = (config.format, source.files.first()) {
            source.open_csv(first, source.open_stream(first, 0..0, MAX_BATCH_BYTES)?)?;
        }
        Ok(source)
    }

    fn open_stream(&self, file: &InputFile, wanted: Range<u64>, max_bytes: u64) -> Result<ObjectStream> {
        ObjectStream::open(self.runtime, file, wanted, max_bytes)
    }

    fn open_csv(&self, file: &InputFile, stream: ObjectStream) -> Result<CsvRecords<ObjectStream>> {
        let failure = stream.failure();
        let records = CsvRecords::new(stream).map_err(|problem| {
            failure.take().unwrap_or_else(|| Error::Read { file: file.uri.clone(), problem })
        })?;
        match self.needed.iter().find(|(name, _)| !records.columns().contains(name)) {
            None => Ok(records),
            Some((column, config_key)) => Err(Error::MissingColumn {
                file: file.uri.clone(),
                column: column.clone(),
                config_key: config_key.clone(),
                available: records.columns().to_vec(),
            }),
        }
    }

    /// Opens a unit's records. Images that the container does not hold are named by a field.
    fn open_records(&self, unit: &InputUnit, max_bytes: u64) -> Result<(Records, StreamFailure)> {
        let (file, span) = (&unit.file, unit.span.range().clone());
        let stream = self.open_stream(file, jsonl::first_byte(&span)..span.end, max_bytes)?;
        let failure = stream.failure();
        let records: Records = match self.format {
            Format::Csv => Box::new(self.open_csv(file, stream)?),
            Format::Jsonl => Box::new(JsonLines::new(stream, span)),
            Format::Images => {
                let images = self.runtime.block_on(image_folder::list_images(file))?;
                Box::new(image_folder::folder_rows(file.clone(), JsonLines::new(stream, span), images))
            }
            // Parquet has its own source.
            Format::WebDataset | Format::Parquet => Box::new(Samples::new(stream)),
        };
        Ok((records, failure))
    }
}

impl Source for RecordSource {
    fn files(&self) -> &[InputFile] {
        &self.files
    }

    fn schema(&self) -> SchemaRef {
        self.table.schema()
    }

    fn units(&self) -> Result<Vec<InputUnit>> {
        let mut units = Vec::new();
        for file in &self.files {
            let unit = |range| InputUnit { file: file.clone(), span: Span::Bytes(range), resident_bytes: 0 };
            match self.format {
                Format::Jsonl => units.extend(jsonl::split_file(file.size, self.rows_per_unit).map(unit)),
                _ => units.push(unit(0..file.size)),
            }
        }
        require_units(units, &self.files)
    }

    fn split_unit(&self, unit: &InputUnit) -> Vec<InputUnit> {
        let Range { start, end } = *unit.span.range();
        match self.format {
            Format::Jsonl => jsonl::split_file(end - start, self.table.rows_per_batch() as u64)
                .map(|bytes| unit.with_span(Span::Bytes(start + bytes.start..start + bytes.end)))
                .collect(),
            _ => vec![unit.clone()],
        }
    }

    fn read_with_memory(&self, unit: &InputUnit, max_bytes: u64) -> Result<Batches> {
        explain_read_errors(&unit.file, self.batches(unit, max_bytes.min(MAX_BATCH_BYTES)))
    }
}

impl RecordSource {
    fn batches(&self, unit: &InputUnit, max_bytes: u64) -> Result<Batches> {
        // Prefetched are the container's bytes, and the images if it only names them.
        let has_images = self.format == Format::WebDataset;
        let container_bytes = if has_images { max_bytes } else { max_bytes / 8 };
        let (records, failure) = self.open_records(unit, container_bytes)?;
        // What a parser takes for the end of the file may be a failed fetch.
        let records = records.map(move |record| failure.take().map_or(Ok(record), Err));
        if has_images {
            return Ok(self.table.clone().batches(unit, max_bytes, records));
        }
        let (image_field, file) = (self.image.clone(), unit.file.uri.clone());
        let with_references = records.map(move |record| match record {
            Ok(mut record) => {
                let uri =
                    image_reference(&mut record, &image_field).map(|name| resolve_reference(&file, &name));
                (Ok(record), uri)
            }
            error => (error, None),
        });
        let fetched = fetch_images(self.runtime, with_references, max_bytes - container_bytes);
        let records = fetched.map(|item| {
            let (record, image) = item?;
            record.map(|record| with_image(record, image))
        });
        Ok(self.table.clone().batches(unit, max_bytes, records))
    }
}

/// The reference to a record's image; `None` for a row that already has an error.
fn image_reference(record: &mut Record, image_field: &str) -> Option<String> {
    let value = record.fields.get(image_field).filter(|value| !value.is_null() && record.error.is_none())?;
    match to_text(value) {
        Ok(name) => Some(name).filter(|name| !name.is_empty()),
        Err(problem) => {
            record.set_error(format!("{problem} in field `{image_field}`"));
            None
        }
    }
}

fn with_image(mut record: Record, image: Option<FetchResult>) -> Record {
    match image {
        Some(Ok(bytes)) => record.image = Some(bytes),
        Some(Err(problem)) => record.set_error(problem),
        None => {}
    }
    record
}
