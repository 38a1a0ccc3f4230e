//! Brings the rows of a batch together in contiguous memory.

use std::sync::{Arc, Mutex, PoisonError};

use super::read_planner::{Task, TaskRow};
use crate::error::{Error, Result};
use crate::shard::buffer::{Buffer, BufferPool};
use crate::shard::reader::TensorRow;
use crate::stream::batch::{Batch, SkippedRows, UnreadableRows};

/// Reasons that are told apart, for each row may have one of its own.
const MOST_REASONS: usize = 1000;

/// What the others are counted under.
const OTHER_REASONS: &str = "other reasons";

/// Makes batches.
pub struct Gatherer {
    pub pool: Arc<BufferPool>,
    pub unreadable: UnreadableRows,
    pub skipped: Arc<Mutex<SkippedRows>>,
}

impl Gatherer {
    /// The batch of a task, once all its rows are there.
    ///
    /// # Errors
    /// If some cannot be read, unless they are to be skipped.
    pub fn batch(&self, task: &Task) -> Result<Batch> {
        let slots = task.slots.iter().enumerate().map(|(i, slot)| {
            let of_slot = || task.rows.iter().filter(|row| row.slot as usize == i).count();
            slot.rows().map(Some).or_else(|error| self.skip(error, of_slot()).map(|()| None))
        });
        let slots = slots.collect::<Result<Vec<_>>>()?;
        let found = task.rows.iter().filter_map(|row| Some((row, slots[row.slot as usize].as_ref()?)));
        let rows: Vec<_> = found.map(|(row, rows)| (row, &rows[row.row as usize])).collect();

        let size = |tensor: fn(&TensorRow) -> usize| rows.iter().map(|(_, row)| tensor(row)).sum();
        let mut latents = Filling::new(&self.pool, size(|row| row.latents.len()));
        let mut text = Filling::new(&self.pool, size(|row| row.text.len()));
        let mut there: Vec<(&TaskRow, &TensorRow)> = Vec::with_capacity(rows.len());
        for (place, row) in rows {
            let sizes = (row.latents.len(), row.text.len());
            let copied = row
                .latents
                .copy_to(latents.next(sizes.0))
                .and_then(|()| row.text.copy_to(text.next(sizes.1)));
            match copied {
                Ok(()) => {
                    latents.filled += sizes.0;
                    text.filled += sizes.1;
                    there.push((place, row));
                }
                Err(error) => self.skip(error, 1)?,
            }
        }
        Ok(Batch {
            number: task.number,
            bucket: task.bucket,
            positions: there.iter().map(|(place, _)| place.place).collect(),
            sample_ids: there.iter().map(|(_, row)| row.sample_id).collect(),
            epochs: there.iter().map(|(place, _)| place.epoch).collect(),
            latents: latents.finish(),
            text: text.finish(),
        })
    }

    /// RowCounts rows that cannot be read, or gives the error back if they are not to be skipped.
    fn skip(&self, error: Error, rows: usize) -> Result<()> {
        if self.unreadable == UnreadableRows::Stop {
            return Err(error);
        }
        let mut skipped = self.skipped.lock().unwrap_or_else(PoisonError::into_inner);
        let why = error.to_string();
        let room = skipped.len() < MOST_REASONS || skipped.contains_key(&why);
        *skipped.entry(if room { why } else { OTHER_REASONS.into() }).or_default() += rows as u64;
        Ok(())
    }
}

/// A buffer that is filled from its beginning.
struct Filling {
    buffer: Buffer,
    filled: usize,
}

impl Filling {
    fn new(pool: &Arc<BufferPool>, len: usize) -> Self {
        Self { buffer: pool.buffer(len), filled: 0 }
    }

    /// Where the next bytes go.
    fn next(&mut self, len: usize) -> &mut [u8] {
        &mut self.buffer.bytes_mut()[self.filled..self.filled + len]
    }

    fn finish(mut self) -> Buffer {
        self.buffer.truncate(self.filled);
        self.buffer
    }
}
