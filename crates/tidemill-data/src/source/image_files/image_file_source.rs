//! The source of folders with captions beside their images. A folder is an input file, and its
//! samples, by name, are its rows.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use tokio::runtime::Runtime;

use crate::caption::config::CaptionConfig;
use crate::error::{Error, Result};
use crate::filter::config::FilterConfig;
use crate::source::config::SourceConfig;
use crate::source::fetch::ordered::{FetchResult, fetch_images};
use crate::source::image_files::folders::{FileSample, SampleFolder, folder_name, list_folders};
use crate::source::needed_columns::list_needed_columns;
use crate::source::pair_source::{Batches, MAX_BATCH_BYTES, Source};
use crate::source::records::reader::RecordOptions;
use crate::source::records::record::Record;
use crate::source::records::sample::{Sample, SampleOptions, is_image_extension};
use crate::source::records::table::RecordTable;
use crate::source::units::{InputFile, InputUnit, Span, require_units, split_rows};

/// The field with the name of an image's folder.
const FOLDER: &str = "folder";

/// Folders of images at one or several URIs.
pub struct ImageFileSource {
    /// By URI.
    folders: HashMap<String, SampleFolder>,
    files: Vec<InputFile>,
    options: SampleOptions,
    table: Arc<RecordTable>,
    rows_per_unit: u64,
    runtime: &'static Runtime,
}

impl ImageFileSource {
    /// Lists the folders.
    ///
    /// # Errors
    /// If a URI cannot be listed, or there are no images.
    pub fn open(config: &SourceConfig, filter: &FilterConfig, caption: &CaptionConfig) -> Result<Self> {
        let needed = list_needed_columns(config, filter, caption)?;
        let options = RecordOptions::new(config, &needed).samples;
        let folders = list_folders(config.uri.as_slice(), &options)?;
        if !needed.iter().any(|(name, _)| name == FOLDER) {
            check_captions(&folders, config)?;
        }
        Ok(Self {
            files: folders.iter().map(|folder| folder.file.clone()).collect(),
            folders: folders.into_iter().map(|folder| (folder.file.uri.clone(), folder)).collect(),
            options,
            table: Arc::new(RecordTable::new(config, filter, &needed, &HashSet::new())),
            rows_per_unit: config.rows_per_unit,
            runtime: tidemill_io::runtime()?,
        })
    }

    /// The first samples, as rows.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn first_records(&self, most: usize) -> Result<Vec<Record>> {
        let Some(folder) = self.files.first().and_then(|file| self.folders.get(&file.uri)) else {
            return Ok(Vec::new());
        };
        let rows = 0..folder.samples.len().min(most) as u64;
        self.read_samples(folder, rows, MAX_BATCH_BYTES).collect()
    }

    /// The samples of a folder as rows. Their files are fetched ahead.
    fn read_samples(
        &self,
        folder: &SampleFolder,
        rows: Range<u64>,
        max_bytes: u64,
    ) -> impl Iterator<Item = Result<Record>> + Send + use<> {
        let range = rows.start as usize..rows.end as usize;
        let samples: Vec<FileSample> = folder.samples.get(range).unwrap_or_default().to_vec();
        let (options, folder_uri) = (self.options.clone(), folder.file.uri.clone());
        let parts = rows.zip(samples).flat_map(move |(row, sample)| list_parts(row, sample, &options));
        let fetched = fetch_images(self.runtime, parts, max_bytes);
        let assembled = Assembled { parts: fetched, options: self.options.clone(), next: None };
        assembled.map(move |record| record.map(|record| with_folder(record, &folder_uri)))
    }
}

/// Checks that there are images, and that any of them has a file beside it.
fn check_captions(folders: &[SampleFolder], config: &SourceConfig) -> Result<()> {
    let mut samples = folders.iter().flat_map(|folder| &folder.samples);
    if samples.any(|sample| sample.files.iter().any(|file| !is_image_extension(&file.extension))) {
        return Ok(());
    }
    let images: usize = folders.iter().map(|folder| folder.samples.len()).sum();
    let problem = format!(
        "the {images} images in or below {} have no captions: neither a file beside any of them (1.txt for \
         1.jpg), nor a metadata.jsonl, .csv or .parquet whose `file_name` names them",
        config.uri.as_slice().join(", ")
    );
    Err(Error::Config { key: "source.uri".into(), problem })
}

/// One file of a sample, or the start of a sample.
enum SamplePart {
    Start { row: u64, sample: Sample },
    File { extension: String },
}

/// The parts of a sample in order, each with the URI to fetch.
fn list_parts(row: u64, sample: FileSample, options: &SampleOptions) -> Vec<(SamplePart, Option<String>)> {
    let mut assembled = Sample::new(&sample.key);
    let mut files = Vec::new();
    for file in sample.files {
        if assembled.wants(options, &file.extension, &file.uri, file.size) {
            files.push((SamplePart::File { extension: file.extension }, Some(file.uri)));
        }
    }
    let start = (SamplePart::Start { row, sample: assembled }, None);
    std::iter::once(start).chain(files).collect()
}

/// Joins fetched parts to records.
struct Assembled<I> {
    parts: I,
    options: SampleOptions,
    /// The sample that has started.
    next: Option<(u64, Sample)>,
}

impl<I: Iterator<Item = Result<(SamplePart, Option<FetchResult>)>>> Iterator for Assembled<I> {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let finished = match self.parts.next() {
                None => self.next.take(),
                Some(Err(error)) => return Some(Err(error)),
                Some(Ok((SamplePart::Start { row, sample }, _))) => match self.next.replace((row, sample)) {
                    None => continue,
                    finished => finished,
                },
                Some(Ok((SamplePart::File { extension }, fetched))) => {
                    if let Some((_, sample)) = &mut self.next {
                        match fetched.unwrap_or_else(|| Ok(Bytes::new())) {
                            Ok(bytes) => sample.add(&self.options, &extension, bytes),
                            Err(problem) => sample.set_error(problem),
                        }
                    }
                    continue;
                }
            };
            return finished.map(|(row, sample)| Ok(sample.into_record(row)));
        }
    }
}

/// Adds the fields that come from the folder's name, unless the sample has them.
fn with_folder(mut record: Record, uri: &str) -> Record {
    let (repeats, name) = folder_name(uri);
    record.fields.entry(FOLDER).or_insert_with(|| name.into());
    if let Some(repeats) = repeats {
        record.fields.entry("repeats").or_insert_with(|| repeats.into());
    }
    record
}

impl Source for ImageFileSource {
    fn files(&self) -> &[InputFile] {
        &self.files
    }

    fn schema(&self) -> SchemaRef {
        self.table.schema()
    }

    fn units(&self) -> Result<Vec<InputUnit>> {
        let mut units = Vec::new();
        for file in &self.files {
            let rows = self.folders.get(&file.uri).map_or(0, |folder| folder.samples.len() as u64);
            let whole = InputUnit { file: file.clone(), span: Span::Rows(0..rows), resident_bytes: 0 };
            units.extend(split_rows(&whole, self.rows_per_unit));
        }
        require_units(units, &self.files)
    }

    fn split_unit(&self, unit: &InputUnit) -> Vec<InputUnit> {
        split_rows(unit, self.table.rows_per_batch() as u64)
    }

    fn read_with_memory(&self, unit: &InputUnit, max_bytes: u64) -> Result<Batches> {
        let folder = self.folders.get(&unit.file.uri);
        let folder = folder.filter(|folder| folder.file.identity == unit.file.identity);
        let Some(folder) = folder else {
            let problem = "has other files than when the run began".into();
            return Err(Error::Changed { file: unit.file.uri.clone(), problem });
        };
        let max_bytes = max_bytes.min(MAX_BATCH_BYTES);
        let records = self.read_samples(folder, unit.span.range().clone(), max_bytes);
        Ok(self.table.clone().batches(unit, max_bytes, records))
    }
}
