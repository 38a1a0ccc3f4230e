//! Tensors of rows. They are in memory if the dataset is remote, and stay in their file if the
//! dataset is local or the row group is cached. The page cache serves files as well as memory of
//! our own would, and reading each row directly to its destination saves a copy.

use std::fs::File;
use std::hash::Hasher;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tidemill_io::{LocalFile, Location, MappedRange, copy_non_temporal};

use crate::dataset::spec::Dtype;
use crate::dataset::unit::UnitId;
use crate::error::{Error, Result};
use crate::float8;
use crate::shard::buffer_pool::BufferPool;
use crate::shard::footer::BlockEntry;
use crate::shard::row_group::{RowGroup, RowGroupReader};
use crate::shard::row_group_cache::{Cache, CachedRowGroup};

/// A remote row group is read whole if at least this share of its rows is wanted.
const READ_WHOLE_SHARE: f64 = 0.9;

/// A tensor of a row.
#[derive(Debug, Clone)]
pub struct Tensor {
    stored: Stored,
    dtype: Dtype,
}

/// The stored bytes of a tensor.
#[derive(Debug, Clone)]
pub enum Stored {
    /// Verified bytes in memory.
    Memory(Bytes),
    /// Row `i` of a row group in a file. It is verified when it is read.
    File(Arc<LocalRowGroup>, usize),
}

/// A row group in a local file.
#[derive(Debug)]
pub struct LocalRowGroup {
    location: Location,
    unit: UnitId,
    path: String,
    entry: BlockEntry,
    width: usize,
    /// The cache file that holds this row group and nothing else, if it is cached.
    cached: Option<PathBuf>,
    /// The mapped file, if the system can map it.
    mapped: Option<MappedRange>,
    /// The open file, if it is not mapped.
    open: Option<KeptOpenFile>,
    row_group: RowGroup,
}

/// One of a limited number of files that are kept open. Other files are opened for each row.
#[derive(Debug)]
struct KeptOpenFile(LocalFile);

/// Number of files that are kept open.
static KEPT_OPEN: AtomicUsize = AtomicUsize::new(0);

/// Limit of files kept open, because a process may often have no more than 1,024.
const MAX_KEPT_OPEN: usize = 256;

/// Copies between slices of one length.
type CopyFn = fn(&[u8], &mut [u8]);

/// An open row group.
pub enum OpenRowGroup<'a> {
    Remote(RowGroupReader<'a>, RowGroup),
    Local(Arc<LocalRowGroup>),
}

impl<'a> OpenRowGroup<'a> {
    /// Opens a row group, from which `rows` rows are wanted. A remote row group comes from the
    /// cache, or is read whole into memory of the pool if nearly all of its rows are wanted.
    ///
    /// # Errors
    /// The errors of [`RowGroupReader::read`].
    pub fn new(
        reader: RowGroupReader<'a>,
        rows: usize,
        cache: Option<&Cache>,
        pool: &Arc<BufferPool>,
    ) -> Result<Self> {
        if reader.location.is_local() {
            return Ok(Self::local(reader, None, reader.read_head()?));
        }
        match cache.map(|cache| cache.get(reader, rows, pool)).transpose()?.flatten() {
            Some(CachedRowGroup::Fetched(bytes)) => return Ok(Self::Remote(reader, reader.parse(&bytes)?)),
            Some(CachedRowGroup::File(file)) => {
                let mut head = vec![0; reader.entry.values_at as usize];
                if File::open(&file).and_then(|file| file.read_exact_at(&mut head, 0)).is_ok() {
                    return Ok(Self::local(reader, Some(file), reader.parse_head(&head.into())?));
                }
            }
            None => {}
        }
        let whole = rows as f64 >= READ_WHOLE_SHARE * f64::from(reader.entry.rows);
        Ok(Self::Remote(reader, if whole { reader.read(pool) } else { reader.read_head() }?))
    }

    fn local(reader: RowGroupReader<'a>, cached: Option<PathBuf>, row_group: RowGroup) -> Self {
        let mut local = LocalRowGroup {
            location: reader.location.clone(),
            unit: reader.unit,
            path: reader.path.to_owned(),
            entry: reader.entry.clone(),
            width: reader.width,
            cached,
            mapped: None,
            open: None,
            row_group,
        };
        // If the file cannot be opened now, reading a row reports the reason.
        if let Ok(file) = local.open_file() {
            local.mapped = file.map(local.offset(0)..local.offset(local.row_group.rows.len()));
            local.open = if local.mapped.is_none() { KeptOpenFile::new(file) } else { None };
        }
        Self::Local(Arc::new(local))
    }

    /// Ids and checksums of the rows.
    pub fn row_group(&self) -> &RowGroup {
        match self {
            Self::Remote(_, row_group) => row_group,
            Self::Local(local) => &local.row_group,
        }
    }

    /// The tensors of some rows. `at` holds their indices in the row group, ascending.
    ///
    /// # Errors
    /// The errors of [`RowGroupReader::read`].
    pub fn tensors(&self, at: &[usize]) -> Result<Vec<Stored>> {
        match self {
            Self::Remote(reader, row_group) => {
                Ok(reader.tensors(row_group, at)?.into_iter().map(Stored::Memory).collect())
            }
            Self::Local(local) => {
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

    /// Decoded size in bytes.
    pub fn len(&self) -> usize {
        match self.dtype {
            Dtype::F16 | Dtype::I32 => self.stored.len(),
            Dtype::F8E4m3 => 2 * self.stored.len().saturating_sub(float8::HEADER),
        }
    }

    /// Returns the decoded bytes.
    ///
    /// # Errors
    /// The errors of [`copy_to`](Self::copy_to).
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.len()];
        self.copy_to(&mut bytes)?;
        Ok(bytes)
    }

    /// Copies the decoded tensor to `bytes`, which must have its size. Reads it from its file if
    /// needed.
    ///
    /// # Errors
    /// The errors of [`RowGroupReader::read`], if the tensor is in a file.
    pub fn copy_to(&self, bytes: &mut [u8]) -> Result<()> {
        match (self.dtype, &self.stored) {
            (Dtype::F16 | Dtype::I32, stored) => stored.copy_to(bytes, copy_non_temporal)?,
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

    fn copy_to(&self, bytes: &mut [u8], copy: CopyFn) -> Result<()> {
        match self {
            Self::Memory(tensor) => copy(tensor, bytes),
            Self::File(local, i) => local.read(*i, bytes, copy)?,
        }
        Ok(())
    }
}

impl KeptOpenFile {
    fn new(file: LocalFile) -> Option<Self> {
        let kept = Self(file);
        // Dropping `kept` decrements the counter again.
        (KEPT_OPEN.fetch_add(1, Ordering::Relaxed) < MAX_KEPT_OPEN).then_some(kept)
    }
}

impl Drop for KeptOpenFile {
    fn drop(&mut self) {
        KEPT_OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

impl LocalRowGroup {
    fn read(&self, i: usize, bytes: &mut [u8], copy: CopyFn) -> Result<()> {
        if self.read_mapped(i, bytes, copy) {
            return Ok(());
        }
        // If the file was mapped, this read reports what is wrong.
        let read = match &self.open {
            Some(open) => open.0.read_exact_at(bytes, self.offset(i)),
            None => self.open_file().and_then(|file| file.read_exact_at(bytes, self.offset(i))),
        };
        let read = read
            .map_err(Error::from)
            .and_then(|()| self.row_group_reader().verify(&self.row_group, i, bytes));
        if read.is_err() && self.cached.is_some() {
            // Another process evicted the file, or the disk is damaged.
            bytes.copy_from_slice(&self.row_group_reader().tensor(&self.row_group, i)?);
            return Ok(());
        }
        read
    }

    /// Copies a tensor from mapped memory. Returns whether that worked and the checksum matches.
    fn read_mapped(&self, i: usize, bytes: &mut [u8], copy: CopyFn) -> bool {
        let Some(mapped) = &self.mapped else { return false };
        let mut sum = self.row_group.row_hasher(i);
        let read = mapped.copy_to(self.offset(i), bytes, copy, |piece| sum.write(piece));
        read.is_ok() && self.row_group.has_checksum(i, &sum)
    }

    fn open_file(&self) -> tidemill_io::Result<LocalFile> {
        match &self.cached {
            Some(path) => LocalFile::open(path, path.display().to_string()),
            None => self.location.open_local(&self.path),
        }
    }

    /// Offset of a tensor in the file that is read, in bytes.
    fn offset(&self, i: usize) -> u64 {
        let start = if self.cached.is_some() { 0 } else { self.entry.offset };
        start + u64::from(self.entry.values_at) + (i * self.width) as u64
    }

    fn row_group_reader(&self) -> RowGroupReader<'_> {
        let Self { location, unit, path, entry, width, .. } = self;
        RowGroupReader { location, unit: *unit, path, entry, width: *width }
    }
}
