//! Temporary files with embeddings, by cell. Each file has the embeddings of some cells, as many as fit
//! into memory.

use std::fs::File;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use half::f16;

use super::cell_pairs::{Cell, CellSearch};
use crate::dedup::decide::Pair;
use crate::error::{Error, Result};

/// The most files that are open at a time.
const MAX_FILES: u64 = 256;

/// Bytes before the values of a record: cell and rank.
const HEADER: usize = 8;

/// Bytes of an embedding in a file.
pub fn record_bytes(width: usize) -> usize {
    HEADER + width * size_of::<f16>()
}

/// The files of a search.
pub struct Partitions {
    files: Vec<BufWriter<File>>,
    folder: PathBuf,
    width: usize,
}

impl Partitions {
    /// Creates `count` files, or as many as may be open. They have no names, so that nothing is left if the
    /// process dies.
    ///
    /// # Errors
    /// If the folder cannot be written to.
    pub fn create(folder: &Path, count: u64, width: usize) -> Result<Self> {
        let folder = folder.to_path_buf();
        let create = |_| tempfile::tempfile_in(&folder).map(BufWriter::new).map_err(|e| failure(&folder, e));
        Ok(Self { files: (0..count.min(MAX_FILES)).map(create).collect::<Result<_>>()?, folder, width })
    }

    /// Adds an embedding to a cell.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn push(&mut self, cell: u32, rank: u32, values: &[f16]) -> Result<()> {
        let count = self.files.len();
        let file = &mut self.files[cell as usize % count];
        let mut record = Vec::with_capacity(HEADER + size_of_val(values));
        record.extend(cell.to_le_bytes());
        record.extend(rank.to_le_bytes());
        values.iter().for_each(|value| record.extend(value.to_le_bytes()));
        file.write_all(&record).map_err(|e| failure(&self.folder, e))
    }

    /// The pairs of all cells; `None` if there are too many.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn search(self, search: &CellSearch) -> Result<Option<Vec<Pair>>> {
        let mut pairs = Vec::new();
        for file in self.files {
            let bytes = read_back(file).map_err(|e| failure(&self.folder, e))?;
            pairs.extend(search.search(&split_cells(&bytes, self.width)));
            if search.has_too_many() {
                return Ok(None);
            }
        }
        Ok(Some(pairs))
    }
}

fn read_back(file: BufWriter<File>) -> std::io::Result<Vec<u8>> {
    let mut file = file.into_inner()?;
    file.seek(SeekFrom::Start(0))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The cells of a file. The records of each are in order of their ranks.
fn split_cells(bytes: &[u8], width: usize) -> Vec<Cell<'_>> {
    let number = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    let records = bytes.chunks_exact(record_bytes(width));
    let mut records: Vec<_> =
        records.map(|record| (number(record), number(&record[4..]), &record[HEADER..])).collect();
    records.sort_unstable_by_key(|(cell, rank, _)| (*cell, *rank));
    let cells = records.chunk_by(|a, b| a.0 == b.0);
    cells.map(|records| records.iter().map(|(_, rank, values)| (*rank, *values)).collect()).collect()
}

fn failure(folder: &Path, source: std::io::Error) -> Error {
    let problem =
        format!("temporary files in {}: {source}; give TMPDIR a folder with room", folder.display());
    Error::Config { key: "dedup.similar", problem }
}
