//! Rows that a reader thread fetches once and that any number of batches take from.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use crate::error::Result;
use crate::shard::reader::{ShardReader, TensorRow};
use crate::stream::order::blocks::Piece;

/// Some rows of a bucket's shards, on their way or in memory.
#[derive(Debug)]
pub struct RowSlot {
    shards: Arc<ShardReader>,
    rows: SlotRows,
    /// None if they could not be read.
    read: OnceLock<Option<Vec<TensorRow>>>,
}

/// Which rows.
#[derive(Debug)]
pub enum SlotRows {
    /// All of some pieces.
    Pieces(Vec<Piece>),
    /// Those of a shard at some places in it, ascending.
    Places { shard: usize, rows: Vec<u64> },
}

impl RowSlot {
    pub fn new(shards: &Arc<ShardReader>, rows: SlotRows) -> Arc<Self> {
        Arc::new(Self { shards: shards.clone(), rows, read: OnceLock::new() })
    }

    /// Reads the rows, for whoever waits for them.
    pub fn load(&self) {
        self.read.get_or_init(|| self.fetch().ok());
    }

    /// Gives up on the rows, so that nobody waits for them.
    pub fn abandon(&self) {
        self.read.get_or_init(|| None);
    }

    /// The rows, once they are there. If they could not be read, this tries once more.
    ///
    /// # Errors
    /// As [`ShardReader::read`].
    pub fn rows(&self) -> Result<Cow<'_, [TensorRow]>> {
        match self.read.wait() {
            Some(rows) => Ok(Cow::Borrowed(rows)),
            None => self.fetch().map(Cow::Owned),
        }
    }

    fn fetch(&self) -> Result<Vec<TensorRow>> {
        match &self.rows {
            SlotRows::Places { shard, rows } => self.shards.read(*shard, rows),
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
