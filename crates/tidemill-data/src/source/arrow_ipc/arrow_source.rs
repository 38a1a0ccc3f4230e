//! The source of Arrow IPC files. Units end between record batches.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::datatypes::SchemaRef;
use rayon::prelude::*;

use crate::caption::config::CaptionConfig;
use crate::error::{Error, Result};
use crate::filter::config::FilterConfig;
use crate::source::arrow_ipc::index::{IpcBatch, IpcIndex, block_bytes};
use crate::source::arrow_ipc::unit_batches::UnitBatches;
use crate::source::changed_files::explain_read_errors;
use crate::source::columnar::{ColumnarBatches, NeededColumns};
use crate::source::config::SourceConfig;
use crate::source::listing::list_files;
use crate::source::pair_source::{Batches, MAX_BATCH_BYTES, Source};
use crate::source::units::{InputFile, InputUnit, Span, join_ranges, require_units, split_rows};

/// Bytes of a compressed record batch in memory, for each stored one. The file does not tell; images
/// are hardly compressible, texts are.
const DECOMPRESSED: u64 = 4;

/// Indices that are kept. Units are read in the order of their files, a few at a time.
const KEPT_INDICES: usize = 64;

/// Arrow IPC files at one or several URIs.
pub struct ArrowSource {
    files: Vec<InputFile>,
    /// Indices of the files that were read last, by URI: a stream's costs a request for each record
    /// batch.
    indices: Mutex<VecDeque<(String, Arc<IpcIndex>)>>,
    columns: NeededColumns,
    rows_per_unit: u64,
    rows_per_batch: u64,
}

impl ArrowSource {
    /// Lists the files and checks the columns of the first one.
    ///
    /// # Errors
    /// As for [`crate::source::open`].
    pub fn open(config: &SourceConfig, filter: &FilterConfig, caption: &CaptionConfig) -> Result<Self> {
        let files = list_files(config.uri.as_slice(), |_| true)?;
        let Some(first) = files.first() else {
            return Err(Error::Config { key: "source.uri".into(), problem: "names no file".into() });
        };
        let index = IpcIndex::read(first)?;
        let columns = NeededColumns::new(config, filter, caption, first, &index.schema)?;
        let indices = Mutex::new([(first.uri.clone(), Arc::new(index))].into());
        let (rows_per_unit, rows_per_batch) = (config.rows_per_unit, config.rows_per_batch as u64);
        Ok(Self { files, indices, columns, rows_per_unit, rows_per_batch })
    }

    fn index(&self, file: &InputFile) -> Result<Arc<IpcIndex>> {
        let lock = || self.indices.lock().unwrap_or_else(PoisonError::into_inner);
        let known = lock().iter().find(|(uri, _)| *uri == file.uri).map(|(_, index)| index.clone());
        if let Some(known) = known {
            return Ok(known);
        }
        let index = Arc::new(IpcIndex::read(file)?);
        let mut indices = lock();
        indices.push_back((file.uri.clone(), index.clone()));
        if indices.len() > KEPT_INDICES {
            indices.pop_front();
        }
        Ok(index)
    }

    fn split_file(&self, file: &InputFile) -> Result<Vec<InputUnit>> {
        let index = self.index(file)?;
        self.columns.check(file, &index.schema)?;
        let ranges: Vec<Range<u64>> = index.batches.iter().map(|batch| batch.rows.clone()).collect();
        let unit = |rows: Range<u64>| {
            let resident_bytes = index.overlapping(&rows).map(resident_bytes).max().unwrap_or(0);
            InputUnit { file: file.clone(), span: Span::Rows(rows), resident_bytes }
        };
        Ok(join_ranges(&ranges, self.rows_per_unit).into_iter().map(unit).collect())
    }

    fn open_batches(&self, unit: &InputUnit, columns: NeededColumns, max_bytes: u64) -> Result<Batches> {
        let index = self.index(&unit.file)?;
        let batches = UnitBatches::open(unit, &index, &columns, self.rows_per_batch, max_bytes)?;
        Ok(Box::new(ColumnarBatches::new(batches, unit, max_bytes, columns)?))
    }
}

fn resident_bytes(batch: &IpcBatch) -> u64 {
    let stored = block_bytes(&batch.block);
    if batch.is_compressed { (1 + DECOMPRESSED).saturating_mul(stored) } else { stored }
}

impl Source for ArrowSource {
    fn files(&self) -> &[InputFile] {
        &self.files
    }

    fn schema(&self) -> SchemaRef {
        self.columns.schema.clone()
    }

    fn units(&self) -> Result<Vec<InputUnit>> {
        let units: Result<Vec<_>> = self.files.par_iter().map(|file| self.split_file(file)).collect();
        require_units(units?.concat(), &self.files)
    }

    fn read_with_memory(&self, unit: &InputUnit, max_bytes: u64) -> Result<Batches> {
        let batches = self.open_batches(unit, self.columns.clone(), max_bytes.min(MAX_BATCH_BYTES));
        explain_read_errors(&unit.file, batches)
    }

    fn split_unit(&self, unit: &InputUnit) -> Vec<InputUnit> {
        split_rows(unit, self.rows_per_batch)
    }

    fn read_without_images(&self, unit: &InputUnit) -> Result<Option<Batches>> {
        let batches = self.open_batches(unit, self.columns.without_image(), MAX_BATCH_BYTES);
        explain_read_errors(&unit.file, batches).map(Some)
    }
}
