//! Temporary files with embeddings, by cell. Each file has the embeddings of some cells, as many as fit
//! into memory.

use std::fs::File;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use half::f16;

use super::search::{Cell, search_cells};
use super::{CELLS_PER_ROW, SimilarSearch};
use crate::error::{Error, Result};

/// The most files that are open at a time.
const MAX_FILES: usize = 256;

/// Bytes before the values of a record: cell and rank.
const HEADER: usize = 8;

/// The files of a search.
pub struct Partitions {
    files: Vec<BufWriter<File>>,
    folder: PathBuf,
    width: usize,
}

impl Partitions {
    /// Creates the files. They have no names, so that nothing is left if the process dies.
    ///
    /// # Errors
    /// If the folder cannot be written to.
    pub fn create(search: &SimilarSearch, rows: usize, width: usize, cells: usize) -> Result<Self> {
        let record = (HEADER + width * size_of::<f16>()) as u64;
        let bytes = rows as u64 * CELLS_PER_ROW.min(cells) as u64 * record;
        let count = bytes.div_ceil(search.memory.max(1)).clamp(1, MAX_FILES.min(cells) as u64);
        let folder = search.folder.to_path_buf();
        let create = |_| tempfile::tempfile_in(&folder).map(BufWriter::new).map_err(|e| failure(&folder, e));
        Ok(Self { files: (0..count).map(create).collect::<Result<_>>()?, folder, width })
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

    /// The pairs of all cells, as [`SimilarSearch::find_pairs`] describes them; not sorted.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn search(self, cosine: f32) -> Result<Vec<(usize, usize)>> {
        let mut pairs = Vec::new();
        for file in self.files {
            let bytes = read_back(file).map_err(|e| failure(&self.folder, e))?;
            pairs.extend(search_cells(&split_cells(&bytes, self.width), self.width, cosine));
        }
        Ok(pairs)
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
    let records = bytes.chunks_exact(HEADER + width * size_of::<f16>());
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
