//! The source of Parquet files. Units end at row-group boundaries.

use std::ops::Range;

use arrow::datatypes::SchemaRef;
use futures::{StreamExt, TryStreamExt};
use tidemill_io::block_on;

use crate::caption::config::CaptionConfig;
use crate::error::{Error, Result};
use crate::filter::config::FilterConfig;
use crate::source::changed_files::explain_read_errors;
use crate::source::columnar::{ColumnarBatches, NeededColumns};
use crate::source::config::SourceConfig;
use crate::source::listing::list_files;
use crate::source::pair_source::{Batches, MAX_BATCH_BYTES, Source};
use crate::source::parquet::footer::Footer;
use crate::source::parquet::unit_batches::UnitBatches;
use crate::source::units::{InputFile, InputUnit, Span, join_ranges, require_units, split_rows};

/// Footers that are read at the same time while files are split into units.
const CONCURRENT_FOOTERS: usize = 16;

/// Parquet files at one or several URIs.
pub struct ParquetSource {
    files: Vec<InputFile>,
    columns: NeededColumns,
    rows_per_unit: u64,
    rows_per_batch: usize,
}

impl ParquetSource {
    /// Lists the files and checks the columns of the first one.
    ///
    /// # Errors
    /// As for [`crate::source::open`].
    pub fn open(config: &SourceConfig, filter: &FilterConfig, caption: &CaptionConfig) -> Result<Self> {
        let files = list_files(config.uri.as_slice(), |_| true)?;
        let Some(first) = files.first() else {
            return Err(Error::Config { key: "source.uri".into(), problem: "names no file".into() });
        };
        let footer = block_on(Footer::open(first))?;
        let columns = NeededColumns::new(config, filter, caption, first, footer.schema())?;
        let (rows_per_unit, rows_per_batch) = (config.rows_per_unit, config.rows_per_batch);
        Ok(Self { files, columns, rows_per_unit, rows_per_batch })
    }

    async fn split_file(&self, file: &InputFile) -> Result<Vec<InputUnit>> {
        let footer = Footer::open(file).await?;
        self.columns.check(file, footer.schema())?;
        footer.check_encryption(&self.columns)?;
        let unit = |rows: Range<u64>| {
            let resident_bytes = footer.resident_bytes(&rows, &self.columns);
            InputUnit { file: file.clone(), span: Span::Rows(rows), resident_bytes }
        };
        Ok(join_ranges(&footer.row_groups(), self.rows_per_unit).into_iter().map(unit).collect())
    }
}

impl Source for ParquetSource {
    fn files(&self) -> &[InputFile] {
        &self.files
    }

    fn schema(&self) -> SchemaRef {
        self.columns.schema.clone()
    }

    fn units(&self) -> Result<Vec<InputUnit>> {
        let units = futures::stream::iter(&self.files)
            .map(|file| self.split_file(file))
            .buffered(CONCURRENT_FOOTERS)
            .try_concat();
        require_units(block_on(units)?, &self.files)
    }

    fn read_with_memory(&self, unit: &InputUnit, max_bytes: u64) -> Result<Batches> {
        self.batches(unit, self.columns.clone(), max_bytes)
    }

    fn split_unit(&self, unit: &InputUnit) -> Vec<InputUnit> {
        split_rows(unit, self.rows_per_batch as u64)
    }

    fn read_without_images(&self, unit: &InputUnit) -> Result<Option<Batches>> {
        self.batches(unit, self.columns.without_image(), MAX_BATCH_BYTES).map(Some)
    }
}

impl ParquetSource {
    fn batches(&self, unit: &InputUnit, columns: NeededColumns, max_bytes: u64) -> Result<Batches> {
        explain_read_errors(&unit.file, self.open_batches(unit, columns, max_bytes.min(MAX_BATCH_BYTES)))
    }

    fn open_batches(&self, unit: &InputUnit, columns: NeededColumns, max_bytes: u64) -> Result<Batches> {
        let footer = block_on(Footer::open(&unit.file))?;
        let groups = footer.read_row_groups(unit.span.range(), &columns, self.rows_per_batch, max_bytes)?;
        let batches = UnitBatches::new(groups, unit);
        Ok(Box::new(ColumnarBatches::new(batches, unit, max_bytes, columns)?))
    }
}
