//! Opens the records of a file, whatever its format.

use std::io::Read;
use std::ops::Range;
use std::sync::Arc;

use tidemill_io::block_on;

use crate::error::{Error, Result};
use crate::source::compression::{Decompressed, has_compressed_name};
use crate::source::config::{CsvConfig, Format, SourceConfig};
use crate::source::object_seek::SeekableObject;
use crate::source::object_stream::{ObjectStream, StreamFailure};
use crate::source::pair_source::MAX_BATCH_BYTES;
use crate::source::records::coco::coco_records;
use crate::source::records::csv::CsvRecords;
use crate::source::records::image_folder::{self, folder_rows};
use crate::source::records::jsonl::JsonLines;
use crate::source::records::metadata_parquet;
use crate::source::records::record::Record;
use crate::source::records::sample::SampleOptions;
use crate::source::units::InputFile;
use crate::source::webdataset::{Samples, ZipMembers, is_zip};

/// Rows that are looked at where fields have no types. Samples of archives hold whole images.
const FIRST_RECORDS: usize = 32;
pub const FIRST_SAMPLES: usize = 8;

/// Bytes that the first rows mostly have. They are fetched at once.
const FIRST_BYTES: u64 = 1 << 20;

/// The rows of a unit as the parser gives them.
pub type Records = Box<dyn Iterator<Item = Record> + Send>;

/// What the parsers need of the configuration.
#[derive(Debug, Clone)]
pub struct RecordOptions {
    pub format: Format,
    pub csv: CsvConfig,
    pub samples: SampleOptions,
    /// The paths or URIs of the source, from which names of images are looked up, too.
    pub roots: Vec<String>,
}

impl RecordOptions {
    /// The options of a configuration that needs these columns.
    pub fn new(config: &SourceConfig, needed: &[(String, String)]) -> Self {
        let text_extensions: Arc<[String]> = needed.iter().map(|(name, _)| name.to_lowercase()).collect();
        Self {
            format: config.format,
            csv: config.csv.clone(),
            samples: SampleOptions { key_split: config.key_split, text_extensions },
            roots: config.uri.as_slice().to_vec(),
        }
    }
}

/// Opens the records of a range of a file. `stream` must start where
/// [`first_byte`](super::jsonl::first_byte) of the range says.
/// Beside the records comes the error of reading the file, if there is one later.
///
/// # Errors
/// If the file cannot be opened, or it is a CSV whose header cannot be read.
pub fn open_records(
    options: &RecordOptions,
    file: &InputFile,
    span: Range<u64>,
    stream: ObjectStream,
) -> Result<(Records, StreamFailure)> {
    let failure = stream.failure();
    let records: Records = match options.format {
        Format::Csv => Box::new(open_csv(file, stream, &options.csv)?),
        // The range of a compressed file is all of it, in other bytes than its lines have.
        Format::Jsonl if has_compressed_name(&file.uri) => {
            Box::new(JsonLines::new(Decompressed::new(stream), 0..u64::MAX))
        }
        Format::Jsonl => Box::new(JsonLines::new(stream, span)),
        Format::Coco => Box::new(coco_records(stream)),
        Format::Images => {
            let images = block_on(image_folder::list_images(file))?;
            let rows = open_metadata(options, file, stream)?;
            Box::new(folder_rows(file.clone(), rows, images, &options.roots))
        }
        Format::WebDataset | Format::Parquet | Format::Arrow => {
            return open_archive(options, file, stream);
        }
    };
    Ok((records, failure))
}

/// Opens the rows of a file that describes images.
fn open_metadata(options: &RecordOptions, file: &InputFile, stream: ObjectStream) -> Result<Records> {
    Ok(match image_folder::metadata_extension(&file.uri) {
        Some("csv") => Box::new(open_csv(file, stream, &options.csv)?),
        Some("parquet") => Box::new(metadata_parquet::read_records(file)?),
        _ => Box::new(JsonLines::new(stream, 0..file.size)),
    })
}

fn open_archive(
    options: &RecordOptions,
    file: &InputFile,
    mut stream: ObjectStream,
) -> Result<(Records, StreamFailure)> {
    let failure = stream.failure();
    let mut start = [0; 4];
    // An error is met again by the reader of the tar.
    let read = stream.read(&mut start).unwrap_or(0);
    if is_zip(&start[..read]) {
        let object = SeekableObject::open(tidemill_io::runtime()?, file)?;
        let failure = object.failure();
        let members = ZipMembers::new(object, &options.samples);
        return Ok((Box::new(Samples::new(members, options.samples.clone())), failure));
    }
    let whole = std::io::Cursor::new(start).take(read as u64).chain(stream);
    Ok((Box::new(Samples::from_tar(whole, options.samples.clone())), failure))
}

/// Opens the records of a CSV file.
///
/// # Errors
/// If its header cannot be read.
pub fn open_csv(
    file: &InputFile,
    stream: ObjectStream,
    config: &CsvConfig,
) -> Result<CsvRecords<Decompressed<ObjectStream>>> {
    let failure = stream.failure();
    CsvRecords::new(Decompressed::new(stream), config)
        .map_err(|problem| failure.take().unwrap_or_else(|| Error::Read { file: file.uri.clone(), problem }))
}

/// The first records of a file. Those of a folder are rows of its metadata.
///
/// # Errors
/// If the file cannot be read.
pub fn first_records(options: &RecordOptions, file: &InputFile) -> Result<Vec<Record>> {
    let most = if options.format == Format::WebDataset { FIRST_SAMPLES } else { FIRST_RECORDS };
    let start = 0..file.size.min(FIRST_BYTES);
    let stream = ObjectStream::open(tidemill_io::runtime()?, file, start, MAX_BATCH_BYTES)?;
    let (records, failure) = if options.format == Format::Images {
        let failure = stream.failure();
        (open_metadata(options, file, stream)?, failure)
    } else {
        open_records(options, file, 0..file.size, stream)?
    };
    let records: Vec<Record> = records.take(most).collect();
    failure.take().map_or(Ok(records), Err)
}
