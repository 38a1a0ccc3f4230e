//! The threads behind a stream. One loads the blocks of a window while the rows of the window before are
//! dealt out by the other, so that reading never waits for training and memory holds two windows and a few
//! batches.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread::Builder;

use crossbeam_channel::{Receiver, Sender, bounded};

use super::Batch;
use super::order::{OpenWindow, Order};
use crate::block::Joined;
use crate::dataset::{Blocks, Tensors};
use crate::error::Result;

/// What the threads need to know.
pub struct Reader {
    pub blocks: Blocks,
    pub order: Order,
    pub global_batch: usize,
}

/// A window and its blocks in memory.
type Loaded = (OpenWindow, Vec<LoadedBlock>);

/// Row groups in memory, by their place among the dataset's.
type Held = HashMap<usize, Arc<Joined>>;

/// A block of the order.
struct LoadedBlock(Vec<Stretch>);

/// Rows of a block that lie in one row group.
struct Stretch {
    /// The first of them in the block.
    first: usize,
    /// And in the row group.
    at: usize,
    group: Arc<Joined>,
}

impl LoadedBlock {
    fn row(&self, row: u32) -> (u64, &[u8], &[u8]) {
        let row = row as usize;
        let stretch = &self.0[self.0.partition_point(|stretch| stretch.first <= row) - 1];
        stretch.group.row(stretch.at + row - stretch.first)
    }
}

impl Reader {
    /// Starts the threads; they end when the receiver of the batches is dropped, or after an error.
    pub fn start(self, position: u64, prefetch: usize) -> Result<Receiver<Result<Batch>>> {
        let reader = Arc::new(self);
        // A rendezvous: the loader holds one window ready while the other is in use.
        let (loaded, windows) = bounded(0);
        let (finished, batches) = bounded(prefetch);
        let loader = reader.clone();
        Builder::new().name("stream-load".into()).spawn(move || loader.load(position, &loaded))?;
        Builder::new()
            .name("stream-deal".into())
            .spawn(move || reader.deal(position, &windows, &finished))?;
        Ok(batches)
    }

    fn load(&self, mut position: u64, to: &Sender<Result<Loaded>>) {
        let mut held = Held::new();
        loop {
            let window = self.order.open(self.order.window_at(position));
            position = window.window.rows.end;
            let loaded = self.load_window(window, &mut held);
            let failed = loaded.is_err();
            if to.send(loaded).is_err() || failed {
                return;
            }
        }
    }

    /// Loads a window's blocks, but for row groups that the window before had: a dataset of one window is read once.
    fn load_window(&self, window: OpenWindow, held: &mut Held) -> Result<Loaded> {
        let mut before = std::mem::take(held);
        let mut group = |i: usize| -> Result<Arc<Joined>> {
            let group = match held.get(&i).cloned().or_else(|| before.remove(&i)) {
                Some(group) => group,
                None => Arc::new(self.blocks.read(i)?),
            };
            Ok(held.entry(i).or_insert(group).clone())
        };
        let mut block = |block: &u64| -> Result<LoadedBlock> {
            let (mut stretches, mut first) = (Vec::new(), 0);
            let pieces = self.order.index().pieces(*block);
            for (i, rows) in pieces.iter().flat_map(|piece| self.blocks.holding(piece)) {
                stretches.push(Stretch { first, at: rows.start, group: group(i)? });
                first += rows.len();
            }
            Ok(LoadedBlock(stretches))
        };
        let blocks = window.blocks.iter().map(&mut block).collect::<Result<_>>()?;
        Ok((window, blocks))
    }

    fn deal(&self, position: u64, from: &Receiver<Result<Loaded>>, to: &Sender<Result<Batch>>) {
        let mut hand = Hand::new(self, position);
        for loaded in from {
            let (window, blocks) = match loaded {
                Ok(loaded) => loaded,
                Err(error) => {
                    // Nobody is left to be told if this fails.
                    let _ = to.send(Err(error));
                    return;
                }
            };
            let epoch = u32::try_from(window.window.epoch).unwrap_or(u32::MAX);
            let rows = window.window.rows.clone();
            for place in (rows.start.max(position)..rows.end).map(|position| window.row(position)) {
                if let Some(batch) = hand.add(epoch, blocks[place.slot as usize].row(place.row))
                    && to.send(Ok(batch)).is_err()
                {
                    return;
                }
            }
        }
    }
}

/// The batch in the making.
struct Hand {
    position: u64,
    rows: usize,
    /// Bytes of a row.
    sizes: (usize, usize),
    epochs: Vec<u32>,
    tensors: Tensors,
}

impl Hand {
    fn new(reader: &Reader, position: u64) -> Self {
        let (rows, sizes) = (reader.global_batch, reader.blocks.row_bytes());
        Self {
            position,
            rows,
            sizes,
            epochs: Vec::with_capacity(rows),
            tensors: Tensors::with_capacity(rows, sizes),
        }
    }

    /// Adds a row; gives the batch if that completes it.
    fn add(&mut self, epoch: u32, row: (u64, &[u8], &[u8])) -> Option<Batch> {
        self.epochs.push(epoch);
        self.tensors.push(row);
        if self.epochs.len() < self.rows {
            return None;
        }
        let position = self.position;
        self.position += self.rows as u64;
        let epochs = std::mem::replace(&mut self.epochs, Vec::with_capacity(self.rows));
        let empty = Tensors::with_capacity(self.rows, self.sizes);
        let Tensors { sample_ids, latents, text } = std::mem::replace(&mut self.tensors, empty);
        Some(Batch { position, sample_ids, epochs, latents, text })
    }
}
