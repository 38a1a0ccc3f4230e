//! Opens the source that the run file describes.

use crate::caption::config::CaptionConfig;
use crate::error::Result;
use crate::filter::config::FilterConfig;
use crate::source::arrow_ipc::ArrowSource;
use crate::source::config::{Format, SourceConfig};
use crate::source::image_files::ImageFileSource;
use crate::source::listing::list_files;
use crate::source::pair_source::Source;
use crate::source::parquet::ParquetSource;
use crate::source::records::image_folder::list_metadata;
use crate::source::records::record_source::RecordSource;

/// Opens the source that a configuration describes, with the columns that filters and templates
/// need.
///
/// # Errors
/// If the configuration is invalid, no file matches, or the first file lacks a column or has it
/// with a wrong type.
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
        Format::Arrow => Box::new(ArrowSource::open(config, filter, caption)?),
        Format::Images => match list_metadata(config.uri.as_slice())? {
            metadata if metadata.is_empty() => Box::new(ImageFileSource::open(config, filter, caption)?),
            metadata => Box::new(RecordSource::open(metadata, config, filter, caption)?),
        },
        Format::WebDataset | Format::Jsonl | Format::Csv | Format::Coco => {
            let files = list_files(config.uri.as_slice(), |_| true)?;
            Box::new(RecordSource::open(files, config, filter, caption)?)
        }
    };
    if let Some(condition) = filter.parse_where()? {
        condition.check(&source.schema())?;
    }
    Ok(source)
}
