//! A slot of rows that a reader thread reads once and any number of batches use.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use crate::error::Result;
use crate::shard::reader::{ShardReader, TensorRow};
use crate::stream::order::blocks::Piece;

/// Rows of a bucket's shards that are being read or are in memory.
#[derive(Debug)]
pub struct RowSlot {
    shards: Arc<ShardReader>,
    rows: SlotRows,
    /// `None` if the rows could not be read.
    read: OnceLock<Option<Vec<TensorRow>>>,
}

/// The rows that a slot holds.
#[derive(Debug)]
pub enum SlotRows {
    /// All rows of some pieces.
    Pieces(Vec<Piece>),
    /// Rows of a shard, by their indices in it, ascending.
    Indices { shard: usize, rows: Vec<u64> },
}

impl RowSlot {
    pub fn new(shards: &Arc<ShardReader>, rows: SlotRows) -> Arc<Self> {
        Arc::new(Self { shards: shards.clone(), rows, read: OnceLock::new() })
    }

    /// Reads the rows and wakes the threads that wait for them.
    pub fn load(&self) {
        self.read.get_or_init(|| self.fetch().ok());
    }

    /// Gives up on the rows, so that no thread waits for them.
    pub fn abandon(&self) {
        self.read.get_or_init(|| None);
    }

    /// The rows. Waits until they are read. If reading failed, tries once more.
    ///
    /// # Errors
    /// The errors of [`ShardReader::read`].
    pub fn rows(&self) -> Result<Cow<'_, [TensorRow]>> {
        match self.read.wait() {
            Some(rows) => Ok(Cow::Borrowed(rows)),
            None => self.fetch().map(Cow::Owned),
        }
    }

    fn fetch(&self) -> Result<Vec<TensorRow>> {
        match &self.rows {
            SlotRows::Indices { shard, rows } => self.shards.read(*shard, rows),
            SlotRows::Pieces(pieces) => {
                let mut all = Vec::new();
                for Piece { shard, rows } in pieces {
                    all.extend(self.shards.read(*shard, &rows.clone().collect::<Vec<_>>())?);
                }
                Ok(all)
            }
        }
    }
}
