//! The source of formats whose fields have no types of their own: the parser of a container gives
//! [`Record`]s, images that they only name are fetched, and the records become batches.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use tokio::runtime::Runtime;

use crate::caption::config::CaptionConfig;
use crate::error::{Error, Result};
use crate::filter::config::FilterConfig;
use crate::source::changed_files::explain_read_errors;
use crate::source::compression::has_compressed_name;
use crate::source::config::{Format, SourceConfig};
use crate::source::fetch::ordered::{FetchResult, fetch_images, reference_base, resolve_reference};
use crate::source::field_path::FieldPath;
use crate::source::needed_columns::list_needed_columns;
use crate::source::object_stream::ObjectStream;
use crate::source::pair_source::{Batches, MAX_BATCH_BYTES, Source};
use crate::source::records::coco;
use crate::source::records::image_folder::FILE_NAME;
use crate::source::records::jsonl;
use crate::source::records::reader::{RecordOptions, first_records, open_csv, open_records};
use crate::source::records::record::Record;
use crate::source::records::table::{RecordTable, to_text};
use crate::source::units::{InputFile, InputUnit, Span, require_units};

/// WebDataset, JSON lines, CSV, COCO and image folders at one or several URIs.
pub struct RecordSource {
    options: RecordOptions,
    files: Vec<InputFile>,
    /// The field that names the image.
    image: String,
    /// The folder from which relative names of images count, if it is not that of the naming file.
    image_root: Option<String>,
    table: Arc<RecordTable>,
    rows_per_unit: u64,
    runtime: &'static Runtime,
}

impl RecordSource {
    /// Looks at the first of these files: for the columns of a CSV, and for lists of captions.
    ///
    /// # Errors
    /// If there are no files, the first one cannot be read, or it is a CSV that lacks a column.
    pub fn open(
        files: Vec<InputFile>,
        config: &SourceConfig,
        filter: &FilterConfig,
        caption: &CaptionConfig,
    ) -> Result<Self> {
        let needed = list_needed_columns(config, filter, caption)?;
        let options = RecordOptions::new(config, &needed);
        let Some(first) = files.first() else {
            return Err(Error::Config { key: "source.uri".into(), problem: "names no file".into() });
        };
        check_csv_columns(&options, first, &needed)?;
        let image = match config.format {
            Format::Images | Format::Coco => FILE_NAME.to_owned(),
            _ => config.columns.image.clone(),
        };
        let lists = find_caption_lists(config.columns.caption.as_slice(), &options, first)?;
        Ok(Self {
            image,
            image_root: config.image_root.clone(),
            table: Arc::new(RecordTable::new(config, filter, &needed, &lists)),
            rows_per_unit: config.rows_per_unit,
            runtime: tidemill_io::runtime()?,
            options,
            files,
        })
    }
}

/// Checks that the first file has the needed columns, if it is a CSV.
fn check_csv_columns(options: &RecordOptions, first: &InputFile, needed: &[(String, String)]) -> Result<()> {
    if options.format != Format::Csv {
        return Ok(());
    }
    let stream = ObjectStream::open(tidemill_io::runtime()?, first, 0..0, MAX_BATCH_BYTES)?;
    let records = open_csv(first, stream, &options.csv)?;
    match needed.iter().find(|(name, _)| !records.columns().contains(name)) {
        None => Ok(()),
        Some((column, config_key)) => Err(Error::MissingColumn {
            file: first.uri.clone(),
            column: column.clone(),
            config_key: config_key.clone(),
            available: records.columns().to_vec(),
        }),
    }
}

/// The columns of captions that hold lists: by their name, by the format, or in one of the first rows.
fn find_caption_lists(
    captions: &[String],
    options: &RecordOptions,
    first: &InputFile,
) -> Result<HashSet<String>> {
    let has_lists: Box<dyn Fn(&String) -> bool> = match options.format {
        // All fields are texts.
        Format::Csv => Box::new(|_| false),
        Format::Coco => Box::new(|name| name == coco::CAPTION),
        _ => {
            let records = first_records(options, first)?;
            let is_list =
                |name: &str, record: &Record| record.field(name).is_some_and(|value| value.is_array());
            Box::new(move |name| records.iter().any(|record| is_list(name, record)))
        }
    };
    Ok(captions.iter().filter(|name| FieldPath::is_list(name) || has_lists(name)).cloned().collect())
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
            match self.options.format {
                Format::Jsonl if !has_compressed_name(&file.uri) => {
                    units.extend(jsonl::split_file(file.size, self.rows_per_unit).map(unit));
                }
                _ => units.push(unit(0..file.size)),
            }
        }
        require_units(units, &self.files)
    }

    fn split_unit(&self, unit: &InputUnit) -> Vec<InputUnit> {
        let Range { start, end } = *unit.span.range();
        match self.options.format {
            Format::Jsonl if !has_compressed_name(&unit.file.uri) => {
                jsonl::split_file(end - start, self.table.rows_per_batch() as u64)
                    .map(|bytes| unit.with_span(Span::Bytes(start + bytes.start..start + bytes.end)))
                    .collect()
            }
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
        let has_images = self.options.format == Format::WebDataset;
        let container_bytes = if has_images { max_bytes } else { max_bytes / 8 };
        let span = unit.span.range().clone();
        let wanted = jsonl::first_byte(&span)..span.end;
        let stream = ObjectStream::open(self.runtime, &unit.file, wanted, container_bytes)?;
        let (records, failure) = open_records(&self.options, &unit.file, span, stream)?;
        // What a parser takes for the end of the file may be a failed fetch.
        let records = records.map(move |record| failure.take().map_or(Ok(record), Err));
        if has_images {
            return Ok(self.table.clone().batches(unit, max_bytes, records));
        }
        let image_field = self.image.clone();
        let base = reference_base(&unit.file.uri, self.image_root.as_deref())?;
        let with_references = records.map(move |record| match record {
            Ok(mut record) => {
                let uri = record.image_uri.clone();
                let uri = uri.or_else(|| {
                    image_reference(&mut record, &image_field).map(|name| resolve_reference(&base, &name))
                });
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
    let value = record.field(image_field).filter(|value| !value.is_null() && record.error.is_none())?;
    match to_text(&value) {
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
