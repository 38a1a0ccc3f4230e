//! Every source but Parquet: a container's parser gives [`Record`]s, images that they only name are fetched, and the
//! records become batches.

use std::ops::Range;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use tokio::runtime::Runtime;

use crate::caption::config::CaptionConfig;
use crate::error::{Error, Result};
use crate::filter::config::FilterConfig;
use crate::source::changed_files::explained;
use crate::source::config::{Format, SourceConfig};
use crate::source::fetch::ordered::{Fetched, fetch, resolve};
use crate::source::listing::list;
use crate::source::needed_columns::needed_columns;
use crate::source::object_stream::{Failure, ObjectStream};
use crate::source::pair_source::{BATCH_BYTES, Batches, Source};
use crate::source::records::csv::CsvRecords;
use crate::source::records::image_folder::{self, FILE_NAME, METADATA};
use crate::source::records::jsonl::{self, JsonLines};
use crate::source::records::record::Record;
use crate::source::records::table::{Table, text};
use crate::source::units::{InputFile, InputUnit, Span, some_units};
use crate::source::webdataset::Samples;

/// The rows of one unit, as its parser gives them.
type Records = Box<dyn Iterator<Item = Record> + Send>;

/// WebDataset, JSON lines, CSV and image folders at one or several URIs.
pub struct RecordSource {
    format: Format,
    files: Vec<InputFile>,
    /// Name and asking configuration key of every column.
    needed: Vec<(String, String)>,
    /// The field that names the image.
    image: String,
    table: Arc<Table>,
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
        let folders = config.format == Format::Images;
        let keep = |uri: &str| !folders || uri.rsplit('/').next() == Some(METADATA);
        let files = list(config.uri.as_slice(), keep)?;
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
        let needed = needed_columns(config, filter, caption)?;
        let source = Self {
            format: config.format,
            files,
            image,
            table: Arc::new(Table::new(config, filter, &needed)),
            needed,
            rows_per_unit: config.rows_per_unit,
            runtime,
        };
        if let (Format::Csv, Some(first)) = (config.format, source.files.first()) {
            source.csv(first, source.stream(first, 0..0, BATCH_BYTES)?)?;
        }
        Ok(source)
    }

    fn stream(&self, file: &InputFile, wanted: Range<u64>, room: u64) -> Result<ObjectStream> {
        ObjectStream::open(self.runtime, file, wanted, room)
    }

    fn csv(&self, file: &InputFile, stream: ObjectStream) -> Result<CsvRecords<ObjectStream>> {
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

    /// The records, their images named if the container does not hold them.
    fn records(&self, unit: &InputUnit, room: u64) -> Result<(Records, Failure)> {
        let (file, span) = (&unit.file, unit.span.range().clone());
        let stream = self.stream(file, jsonl::first_byte(&span)..span.end, room)?;
        let failure = stream.failure();
        let records: Records = match self.format {
            Format::Csv => Box::new(self.csv(file, stream)?),
            Format::Jsonl => Box::new(JsonLines::new(stream, span)),
            Format::Images => {
                let images = self.runtime.block_on(image_folder::images(file))?;
                Box::new(image_folder::rows(file.clone(), JsonLines::new(stream, span), images))
            }
            // Parquet has a source of its own.
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
            let unit = |range| InputUnit { file: file.clone(), span: Span::Bytes(range), held: 0 };
            match self.format {
                Format::Jsonl => units.extend(jsonl::cut(file.size, self.rows_per_unit).map(unit)),
                _ => units.push(unit(0..file.size)),
            }
        }
        some_units(units, &self.files)
    }

    fn stretches(&self, unit: &InputUnit) -> Vec<InputUnit> {
        let Range { start, end } = *unit.span.range();
        match self.format {
            Format::Jsonl => jsonl::cut(end - start, self.table.rows_per_batch() as u64)
                .map(|bytes| unit.part(Span::Bytes(start + bytes.start..start + bytes.end)))
                .collect(),
            _ => vec![unit.clone()],
        }
    }

    fn read_within(&self, unit: &InputUnit, room: u64) -> Result<Batches> {
        explained(&unit.file, self.batches(unit, room.min(BATCH_BYTES)))
    }
}

impl RecordSource {
    fn batches(&self, unit: &InputUnit, room: u64) -> Result<Batches> {
        // What is read ahead are the container's bytes, and the images where it only names them.
        let inside = self.format == Format::WebDataset;
        let container = if inside { room } else { room / 8 };
        let (records, failure) = self.records(unit, container)?;
        // What a parser takes for the end of a file may be the end of the network.
        let records = records.map(move |record| failure.take().map_or(Ok(record), Err));
        if inside {
            return Ok(self.table.clone().batches(unit, room, records));
        }
        let (field, file) = (self.image.clone(), unit.file.uri.clone());
        let named = records.map(move |record| match record {
            Ok(mut record) => {
                let uri = reference(&mut record, &field).map(|name| resolve(&file, &name));
                (Ok(record), uri)
            }
            error => (error, None),
        });
        let fetched = fetch(self.runtime, named, room - container);
        let records = fetched.map(|item| {
            let (record, image) = item?;
            record.map(|record| with_image(record, image))
        });
        Ok(self.table.clone().batches(unit, room, records))
    }
}

/// What a record calls its image; nothing is fetched for a row that is broken already.
fn reference(record: &mut Record, field: &str) -> Option<String> {
    let value = record.fields.get(field).filter(|value| !value.is_null() && record.error.is_none())?;
    match text(value) {
        Ok(name) => Some(name).filter(|name| !name.is_empty()),
        Err(problem) => {
            record.fail(format!("{problem} in field `{field}`"));
            None
        }
    }
}

fn with_image(mut record: Record, image: Option<Fetched>) -> Record {
    match image {
        Some(Ok(bytes)) => record.image = Some(bytes),
        Some(Err(problem)) => record.fail(problem),
        None => {}
    }
    record
}
