//! Gathers the rows of a batch in contiguous memory.

use std::sync::{Arc, Mutex, PoisonError};

use super::read_planner::{Task, TaskRow};
use crate::error::{Error, Result};
use crate::shard::buffer_pool::{Buffer, BufferPool};
use crate::shard::reader::TensorRow;
use crate::stream::batch::{Batch, SkippedRows, UnreadableRows};

/// Limit of distinct error messages that are counted, because each row may have its own.
const MAX_REASONS: usize = 1000;

/// Name that further error messages are counted under.
const OTHER_REASONS: &str = "other reasons";

/// Makes batches of rows that reader threads read.
pub struct Gatherer {
    pub pool: Arc<BufferPool>,
    pub unreadable: UnreadableRows,
    pub skipped: Arc<Mutex<SkippedRows>>,
}

impl Gatherer {
    /// Makes the batch of a task. Waits until all its rows are read.
    ///
    /// # Errors
    /// If a row cannot be read, unless such rows are to be skipped.
    pub fn make_batch(&self, task: &Task) -> Result<Batch> {
        let slots = task.slots.iter().enumerate().map(|(i, slot)| {
            let slot_rows = || task.rows.iter().filter(|row| row.slot as usize == i).count();
            slot.rows().map(Some).or_else(|error| self.skip(error, slot_rows()).map(|()| None))
        });
        let slots = slots.collect::<Result<Vec<_>>>()?;
        let found = task.rows.iter().filter_map(|row| Some((row, slots[row.slot as usize].as_ref()?)));
        let rows: Vec<_> = found.map(|(row, rows)| (row, &rows[row.row as usize])).collect();

        let size = |tensor: fn(&TensorRow) -> usize| rows.iter().map(|(_, row)| tensor(row)).sum();
        let mut latents = BufferFiller::new(&self.pool, size(|row| row.latents.len()));
        let mut text = BufferFiller::new(&self.pool, size(|row| row.text.len()));
        let mut copied_rows: Vec<(&TaskRow, &TensorRow)> = Vec::with_capacity(rows.len());
        for (task_row, row) in rows {
            let sizes = (row.latents.len(), row.text.len());
            let copied = row
                .latents
                .copy_to(latents.next(sizes.0))
                .and_then(|()| row.text.copy_to(text.next(sizes.1)));
            match copied {
                Ok(()) => {
                    latents.filled += sizes.0;
                    text.filled += sizes.1;
                    copied_rows.push((task_row, row));
                }
                Err(error) => self.skip(error, 1)?,
            }
        }
        Ok(Batch {
            number: task.number,
            bucket: task.bucket,
            positions: copied_rows.iter().map(|(task_row, _)| task_row.position).collect(),
            sample_ids: copied_rows.iter().map(|(_, row)| row.sample_id).collect(),
            epochs: copied_rows.iter().map(|(task_row, _)| task_row.epoch).collect(),
            latents: latents.finish(),
            text: text.finish(),
        })
    }

    /// Counts rows that cannot be read, or returns the error if they are not to be skipped.
    fn skip(&self, error: Error, rows: usize) -> Result<()> {
        if self.unreadable == UnreadableRows::Stop {
            return Err(error);
        }
        let mut skipped = self.skipped.lock().unwrap_or_else(PoisonError::into_inner);
        let reason = error.to_string();
        let has_room = skipped.len() < MAX_REASONS || skipped.contains_key(&reason);
        *skipped.entry(if has_room { reason } else { OTHER_REASONS.into() }).or_default() += rows as u64;
        Ok(())
    }
}

/// A buffer that is filled from its beginning.
struct BufferFiller {
    buffer: Buffer,
    filled: usize,
}

impl BufferFiller {
    fn new(pool: &Arc<BufferPool>, len: usize) -> Self {
        Self { buffer: pool.buffer(len), filled: 0 }
    }

    /// The slice that the next bytes go to.
    fn next(&mut self, len: usize) -> &mut [u8] {
        &mut self.buffer.bytes_mut()[self.filled..self.filled + len]
    }

    fn finish(mut self) -> Buffer {
        self.buffer.truncate(self.filled);
        self.buffer
    }
}
