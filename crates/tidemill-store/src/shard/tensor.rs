//! Tensors of rows: in memory if they come from elsewhere, and in their file if that is on this machine or in its cache.
//! There the page cache is as good as memory of ours, and reading each row to where it is needed saves a copy.

use std::fs::File;
use std::hash::Hasher;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tidemill_io::{LocalFile, Location, Mapped, copy_past_caches};

use crate::dataset::spec::Dtype;
use crate::dataset::unit::UnitId;
use crate::error::{Error, Result};
use crate::float8;
use crate::shard::buffer::Pool;
use crate::shard::cache::{Cache, Cached};
use crate::shard::footer::BlockEntry;
use crate::shard::row_group::{Block, Place};

/// A row group elsewhere is read whole if at least this share of its rows is wanted.
const WHOLE: f64 = 0.9;

/// A tensor of a row.
#[derive(Debug, Clone)]
pub struct Tensor {
    stored: Stored,
    dtype: Dtype,
}

/// Its bytes as they are stored.
#[derive(Debug, Clone)]
pub enum Stored {
    /// In memory, verified.
    Memory(Bytes),
    /// In its file, to be verified when it is read.
    File(Arc<LocalBlock>, usize),
}

/// A row group in a file of this machine.
#[derive(Debug)]
pub struct LocalBlock {
    location: Location,
    unit: UnitId,
    path: String,
    entry: BlockEntry,
    width: usize,
    /// The file that has it, and nothing else, if it is cached.
    cached: Option<PathBuf>,
    /// Where its rows are read, if the system lets us.
    mapped: Option<Mapped>,
    /// If it does not.
    open: Option<KeptOpen>,
    block: Block,
}

/// One of a limited number of files that are kept open; others are opened for each row.
#[derive(Debug)]
struct KeptOpen(LocalFile);

/// How many are.
static KEPT_OPEN: AtomicUsize = AtomicUsize::new(0);

/// And how many may be: a process may often have no more than 1,024.
const MOST_OPEN: usize = 256;

/// Between slices of one length.
type Copying = fn(&[u8], &mut [u8]);

/// A row group that is open.
pub enum Opened<'a> {
    Elsewhere(Place<'a>, Block),
    Here(Arc<LocalBlock>),
}

impl<'a> Opened<'a> {
    /// Opens a row group of which so many rows are wanted. Elsewhere it is taken from the cache, or read whole if these
    /// are nearly all, into memory of the pool.
    ///
    /// # Errors
    /// As [`Place::read`].
    pub fn new(place: Place<'a>, rows: usize, cache: Option<&Cache>, pool: &Arc<Pool>) -> Result<Self> {
        if place.location.is_local() {
            return Ok(Self::here(place, None, place.read_head()?));
        }
        match cache.map(|cache| cache.get(place, rows, pool)).transpose()?.flatten() {
            Some(Cached::Fetched(bytes)) => return Ok(Self::Elsewhere(place, place.block(&bytes)?)),
            Some(Cached::File(file)) => {
                let mut head = vec![0; place.entry.values_at as usize];
                if File::open(&file).and_then(|file| file.read_exact_at(&mut head, 0)).is_ok() {
                    return Ok(Self::here(place, Some(file), place.head(&head.into())?));
                }
            }
            None => {}
        }
        let whole = rows as f64 >= WHOLE * f64::from(place.entry.rows);
        Ok(Self::Elsewhere(place, if whole { place.read(pool) } else { place.read_head() }?))
    }

    fn here(place: Place<'a>, cached: Option<PathBuf>, block: Block) -> Self {
        let mut local = LocalBlock {
            location: place.location.clone(),
            unit: place.unit,
            path: place.path.to_owned(),
            entry: place.entry.clone(),
            width: place.width,
            cached,
            mapped: None,
            open: None,
            block,
        };
        // If it cannot be opened now, whoever reads a row is told why.
        if let Ok(file) = local.open_file() {
            local.mapped = file.map(local.offset(0)..local.offset(local.block.rows.len()));
            local.open = if local.mapped.is_none() { KeptOpen::new(file) } else { None };
        }
        Self::Here(Arc::new(local))
    }

    /// What it holds but for its tensors.
    pub fn block(&self) -> &Block {
        match self {
            Self::Elsewhere(_, block) => block,
            Self::Here(local) => &local.block,
        }
    }

    /// The tensors of some rows, given by their places, ascending.
    ///
    /// # Errors
    /// As [`Place::read`].
    pub fn tensors(&self, at: &[usize]) -> Result<Vec<Stored>> {
        match self {
            Self::Elsewhere(place, block) => {
                Ok(place.tensors(block, at)?.into_iter().map(Stored::Memory).collect())
            }
            Self::Here(local) => {
                if let ([first, .., last], None, Some(mapped)) = (at, &local.cached, &local.mapped) {
                    mapped.will_need(local.offset(*first)..local.offset(last + 1));
                }
                Ok(at.iter().map(|i| Stored::File(local.clone(), *i)).collect())
            }
        }
    }
}

impl Tensor {
    pub fn new(stored: Stored, dtype: Dtype) -> Self {
        Self { stored, dtype }
    }

    /// Its size in bytes as readers give it.
    pub fn len(&self) -> usize {
        match self.dtype {
            Dtype::F16 | Dtype::I32 => self.stored.len(),
            Dtype::F8E4m3 => 2 * self.stored.len().saturating_sub(float8::HEADER),
        }
    }

    /// Its bytes as readers give it.
    ///
    /// # Errors
    /// As [`copy_to`](Self::copy_to).
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.len()];
        self.copy_to(&mut bytes)?;
        Ok(bytes)
    }

    /// Copies or reads it to where it is needed, which has its size.
    ///
    /// # Errors
    /// As [`Place::read`], if it is in a file.
    pub fn copy_to(&self, bytes: &mut [u8]) -> Result<()> {
        match (self.dtype, &self.stored) {
            (Dtype::F16 | Dtype::I32, stored) => stored.copy_to(bytes, copy_past_caches)?,
            (Dtype::F8E4m3, Stored::Memory(stored)) => float8::decode(stored, bytes),
            (Dtype::F8E4m3, stored) => {
                let mut copy = vec![0; stored.len()];
                stored.copy_to(&mut copy, |from, to| to.copy_from_slice(from))?;
                float8::decode(&copy, bytes);
            }
        }
        Ok(())
    }
}

impl Stored {
    fn len(&self) -> usize {
        match self {
            Self::Memory(bytes) => bytes.len(),
            Self::File(local, _) => local.width,
        }
    }

    fn copy_to(&self, bytes: &mut [u8], copy: Copying) -> Result<()> {
        match self {
            Self::Memory(tensor) => copy(tensor, bytes),
            Self::File(local, i) => local.read(*i, bytes, copy)?,
        }
        Ok(())
    }
}

impl KeptOpen {
    fn new(file: LocalFile) -> Option<Self> {
        let kept = Self(file);
        // Dropping it counts it out again.
        (KEPT_OPEN.fetch_add(1, Ordering::Relaxed) < MOST_OPEN).then_some(kept)
    }
}

impl Drop for KeptOpen {
    fn drop(&mut self) {
        KEPT_OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

impl LocalBlock {
    fn read(&self, i: usize, bytes: &mut [u8], copy: Copying) -> Result<()> {
        if self.read_mapped(i, bytes, copy) {
            return Ok(());
        }
        // If it was mapped, this says what is wrong.
        let read = match &self.open {
            Some(open) => open.0.read_exact_at(bytes, self.offset(i)),
            None => self.open_file().and_then(|file| file.read_exact_at(bytes, self.offset(i))),
        };
        let read = read.map_err(Error::from).and_then(|()| self.place().verify(&self.block, i, bytes));
        if read.is_err() && self.cached.is_some() {
            // Another process needed the room, or the disk is damaged.
            bytes.copy_from_slice(&self.place().tensor(&self.block, i)?);
            return Ok(());
        }
        read
    }

    /// Whether a tensor could be read from memory, and is what was committed.
    fn read_mapped(&self, i: usize, bytes: &mut [u8], copy: Copying) -> bool {
        let Some(mapped) = &self.mapped else { return false };
        let mut sum = self.block.row_hasher(i);
        let read = mapped.copy_to(self.offset(i), bytes, copy, |piece| sum.write(piece));
        read.is_ok() && self.block.is_row(i, &sum)
    }

    fn open_file(&self) -> tidemill_io::Result<LocalFile> {
        match &self.cached {
            Some(path) => LocalFile::open(path, path.display().to_string()),
            None => self.location.open_local(&self.path),
        }
    }

    /// Where a tensor is in the file that is read.
    fn offset(&self, i: usize) -> u64 {
        let start = if self.cached.is_some() { 0 } else { self.entry.offset };
        start + u64::from(self.entry.values_at) + (i * self.width) as u64
    }

    fn place(&self) -> Place<'_> {
        let Self { location, unit, path, entry, width, .. } = self;
        Place { location, unit: *unit, path, entry, width: *width }
    }
}
