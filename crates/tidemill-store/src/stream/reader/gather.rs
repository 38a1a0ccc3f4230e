//! Gathers the rows of a batch in contiguous memory.

use std::sync::{Arc, Mutex, PoisonError};

use super::read_planner::{Task, TaskRow};
use crate::error::{Error, Result};
use crate::shard::buffer_pool::{Buffer, BufferPool};
use crate::shard::reader::TensorRow;
use crate::shard::tensor::Tensor;
use crate::stream::batch::{Batch, SkippedRows, UnreadableRows};

/// Limit of distinct error messages that are counted, because each row may have its own.
const MAX_REASONS: usize = 1000;

/// Name that further error messages are counted under.
const OTHER_REASONS: &str = "other reasons";

/// Makes batches of rows that reader threads read.
pub struct Gatherer {
    pub pool: Arc<BufferPool>,
    /// Number of text columns of the datasets.
    pub text_columns: usize,
    pub has_time_ids: bool,
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

        // Rows of one bucket have the same columns and sizes.
        let sizes: Vec<usize> =
            rows.first().map_or(Vec::new(), |(_, row)| row.tensors().map(Tensor::len).collect());
        let mut columns: Vec<BufferFiller> =
            sizes.iter().map(|size| BufferFiller::new(&self.pool, size * rows.len())).collect();
        let mut copied_rows: Vec<(&TaskRow, &TensorRow)> = Vec::with_capacity(rows.len());
        for (task_row, row) in rows {
            let mut tensors = row.tensors().zip(&mut columns);
            match tensors.try_for_each(|(tensor, column)| tensor.copy_to(column.next(tensor.len()))) {
                Ok(()) => {
                    columns.iter_mut().zip(&sizes).for_each(|(column, size)| column.filled += size);
                    copied_rows.push((task_row, row));
                }
                Err(error) => self.skip(error, 1)?,
            }
        }
        // Without rows there are no sizes, but as many columns.
        let mut buffers = columns.into_iter().map(BufferFiller::finish);
        let mut next_buffer = || buffers.next().unwrap_or_else(|| self.pool.buffer(0));
        Ok(Batch {
            number: task.number,
            bucket: task.bucket,
            positions: copied_rows.iter().map(|(task_row, _)| task_row.position).collect(),
            sample_ids: copied_rows.iter().map(|(_, row)| row.sample_id).collect(),
            epochs: copied_rows.iter().map(|(task_row, _)| task_row.epoch).collect(),
            latents: next_buffer(),
            text: (0..self.text_columns).map(|_| next_buffer()).collect(),
            time_ids: self.has_time_ids.then(next_buffer),
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
