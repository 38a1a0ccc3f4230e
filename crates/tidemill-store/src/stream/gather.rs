//! Copies the rows of a batch into contiguous memory.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::Batch;
use super::buffer::Pool;
use super::planner::Task;
use crate::error::Result;
use crate::shards::Row;

/// What becomes of rows that cannot be read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Unreadable {
    /// The stream ends with an error that names the file.
    #[default]
    Stop,
    /// Their batches go without them, and they are counted.
    Skip,
}

/// Rows that were left out because they could not be read, by why.
pub type Skipped = BTreeMap<String, u64>;

/// Makes batches.
pub struct Gatherer {
    pub pool: Arc<Pool>,
    pub unreadable: Unreadable,
    pub skipped: Arc<Mutex<Skipped>>,
}

impl Gatherer {
    /// The batch of a task, once all its rows are there.
    ///
    /// # Errors
    /// If some cannot be read, unless they are to be skipped.
    pub fn batch(&self, task: &Task) -> Result<Batch> {
        let slots = task.slots.iter().enumerate().map(|(i, slot)| match slot.rows() {
            Err(error) if self.unreadable == Unreadable::Skip => {
                let rows = task.rows.iter().filter(|row| row.slot as usize == i).count() as u64;
                let mut skipped = self.skipped.lock().unwrap_or_else(PoisonError::into_inner);
                *skipped.entry(error.to_string()).or_default() += rows;
                Ok(None)
            }
            rows => rows.map(Some),
        });
        let slots: Vec<Option<Cow<[Row]>>> = slots.collect::<Result<_>>()?;
        let found = task.rows.iter().filter_map(|row| Some((row, slots[row.slot as usize].as_ref()?)));
        let rows: Vec<_> = found.map(|(row, rows)| (row, &rows[row.row as usize])).collect();
        let filled = |bytes: fn(&Row) -> &[u8]| {
            let room = rows.iter().map(|(_, row)| bytes(row).len()).sum();
            self.pool
                .fill(room, |buffer| rows.iter().for_each(|(_, row)| buffer.extend_from_slice(bytes(row))))
        };
        Ok(Batch {
            number: task.number,
            bucket: task.bucket,
            places: rows.iter().map(|(row, _)| row.place).collect(),
            sample_ids: rows.iter().map(|(_, row)| row.sample_id).collect(),
            epochs: rows.iter().map(|(row, _)| row.epoch).collect(),
            latents: filled(|row| &row.latents),
            text: filled(|row| &row.text),
        })
    }
}
