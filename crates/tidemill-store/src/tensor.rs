//! Tensors of rows: in memory if they come from elsewhere, and in their file if that is on this machine. There the page
//! cache is as good as memory of ours, and reading each row to where it is needed saves a copy.

use std::sync::Arc;

use bytes::Bytes;
use tidemill_io::Location;

use crate::block::{Block, Place};
use crate::commit::{BlockEntry, FileEntry, UnitId};
use crate::error::Result;

/// A row group elsewhere is read whole from this share of its rows on, as `(10, 9)` is 9 / 10.
const WHOLE: (usize, usize) = (10, 9);

/// A tensor of a row.
#[derive(Debug, Clone)]
pub enum Tensor {
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
    file: FileEntry,
    entry: BlockEntry,
    width: usize,
    block: Block,
}

/// A row group that is open.
pub enum Opened<'a> {
    Elsewhere(Place<'a>, Block),
    Here(Arc<LocalBlock>),
}

impl<'a> Opened<'a> {
    /// Opens a row group of which so many rows are wanted. Elsewhere it is read whole if these are nearly all.
    ///
    /// # Errors
    /// As [`Place::read`].
    pub fn new(place: Place<'a>, rows: usize) -> Result<Self> {
        if !place.location.is_local() {
            let whole = rows * WHOLE.0 >= place.entry.rows as usize * WHOLE.1;
            let block = if whole { place.read() } else { place.read_head() };
            return Ok(Self::Elsewhere(place, block?));
        }
        Ok(Self::Here(Arc::new(LocalBlock {
            location: place.location.clone(),
            unit: place.unit.clone(),
            // The other row groups are of no use here.
            file: FileEntry { blocks: Vec::new(), ..place.file.clone() },
            entry: place.entry.clone(),
            width: place.width,
            block: place.read_head()?,
        })))
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
    pub fn tensors(&self, at: &[usize]) -> Result<Vec<Tensor>> {
        match self {
            Self::Elsewhere(place, block) => {
                Ok(place.tensors(block, at)?.into_iter().map(Tensor::Memory).collect())
            }
            Self::Here(local) => {
                if let [first, .., last] = at {
                    let range = local.offset(*first)..local.offset(last + 1);
                    local.location.will_need(&local.file.path, range);
                }
                Ok(at.iter().map(|i| Tensor::File(local.clone(), *i)).collect())
            }
        }
    }
}

impl Tensor {
    /// Its size in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Memory(bytes) => bytes.len(),
            Self::File(local, _) => local.width,
        }
    }

    /// Copies or reads it to where it is needed, which has its size.
    ///
    /// # Errors
    /// As [`Place::read`], if it is in a file.
    pub fn copy_to(&self, bytes: &mut [u8]) -> Result<()> {
        match self {
            Self::Memory(tensor) => bytes.copy_from_slice(tensor),
            Self::File(local, i) => {
                local.location.read_local(&local.file.path, local.offset(*i), bytes)?;
                local.place().verify(&local.block, *i, bytes)?;
            }
        }
        Ok(())
    }
}

impl LocalBlock {
    /// Where a tensor is in the file.
    fn offset(&self, i: usize) -> u64 {
        self.entry.offset + u64::from(self.entry.values_at) + (i * self.width) as u64
    }

    fn place(&self) -> Place<'_> {
        let Self { location, unit, file, entry, width, .. } = self;
        Place { location, unit, file, entry, width: *width }
    }
}
