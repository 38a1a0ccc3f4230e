//! Plans what must be read for the batches of a rank, and when. Blocks that the rank owns are read
//! whole, each once per window, while batches take rows from the previous window, so that reading
//! is spread evenly. Rows in blocks of other ranks are read by range. So are the rows of the first
//! batch, which need not wait for whole blocks.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::slot::{RowSlot, SlotRows};
use crate::bucket::Bucket;
use crate::shard::reader::ShardReader;
use crate::stream::order::batch_plan::{BatchPlan, BatchPlanner, PlannedBatch, PlannedRow, SequencePosition};
use crate::stream::order::rank_share::Rank;
use crate::stream::order::shuffle_window::{OpenWindow, ShuffleOrder, Window};

/// A dataset, by its index in [`BatchPlan::datasets`], and a bucket.
type SequenceKey = (usize, Bucket);

/// Plans the batches of a rank, one after the other.
pub struct ReadPlanner {
    batches: BatchPlanner,
    rank: Rank,
    sequences: HashMap<SequenceKey, Sequence>,
    /// Number of the next batch.
    number: u64,
    is_first: bool,
}

/// What a rank's batch is made of.
pub struct Task {
    pub number: u64,
    pub bucket: Bucket,
    /// The slots that hold its rows.
    pub slots: Vec<Arc<RowSlot>>,
    pub rows: Vec<TaskRow>,
}

/// A row of a task.
#[derive(Debug, Clone, Copy)]
pub struct TaskRow {
    /// Position of the row in the global batch.
    pub position: u32,
    pub epoch: u32,
    /// Index of its slot in the task.
    pub slot: u32,
    /// Index of the row in the slot.
    pub row: u32,
}

/// What must be read for a batch.
#[derive(Default)]
pub struct Reads {
    /// Slots that this batch waits for.
    pub rows: Vec<Arc<RowSlot>>,
    /// Blocks that this batch or later ones need.
    pub blocks: Vec<Arc<RowSlot>>,
}

/// The row sequence of a dataset in a bucket.
struct Sequence {
    shards: Arc<ShardReader>,
    order: ShuffleOrder,
    current: Option<LoadingWindow>,
    next: Option<LoadingWindow>,
}

/// A window whose blocks are being read.
struct LoadingWindow {
    open: OpenWindow,
    slots: Vec<Option<Arc<RowSlot>>>,
    /// Rows of the window that batches have taken.
    taken_rows: u64,
}

impl ReadPlanner {
    /// Plans from batch `number` on. `shards` holds the shards of every dataset and bucket of the
    /// plan.
    pub fn new(
        plan: &Arc<BatchPlan>,
        number: u64,
        rank: Rank,
        shards: &HashMap<(&str, Bucket), Arc<ShardReader>>,
    ) -> Self {
        let index_of = |name: &str| plan.datasets().iter().position(|dataset| dataset == name);
        let sequence = |at: SequencePosition| {
            let shards = shards.get(&(at.dataset, at.bucket))?.clone();
            let key = (index_of(at.dataset)?, at.bucket);
            Some((key, Sequence { shards, order: at.order.clone(), current: None, next: None }))
        };
        let sequences = plan.sequence_positions(number).filter_map(sequence).collect();
        Self { batches: BatchPlanner::new(plan.clone()), rank, sequences, number, is_first: true }
    }

    /// The next batch, and what to read now.
    pub fn plan_next(&mut self) -> (Task, Reads) {
        let batch = self.batches.batch(self.number);
        let mut reads = Reads::default();
        let mut task =
            Task { number: self.number, bucket: batch.bucket, slots: Vec::new(), rows: Vec::new() };
        let positions = self.rank.rows(&batch);
        let rows: Vec<(u32, PlannedRow)> =
            positions.into_iter().map(|position| (position, batch.rows[position as usize])).collect();
        for (number, window) in batch.windows.iter().enumerate() {
            let Some(sequence) = self.sequences.get_mut(&(window.dataset, batch.bucket)) else { continue };
            sequence.advance_to(&window.open);
            let rows = rows.iter().filter(|(_, row)| row.window as usize == number);
            sequence.add_rows(&self.rank, self.is_first, rows, &mut task, &mut reads);
            sequence.read_ahead(&self.rank, rows_of_window(&batch, number), &mut reads);
        }
        task.rows.sort_unstable_by_key(|row| row.position);
        self.number += 1;
        self.is_first = false;
        (task, reads)
    }
}

/// Number of rows of a batch that come from one of its windows.
fn rows_of_window(batch: &PlannedBatch, window: usize) -> u64 {
    batch.rows.iter().filter(|row| row.window as usize == window).count() as u64
}

impl Sequence {
    /// Advances to a window.
    fn advance_to(&mut self, open: &OpenWindow) {
        if self.current.as_ref().is_some_and(|current| current.open.window == open.window) {
            return;
        }
        let next = self.next.take().filter(|next| next.open.window == open.window);
        self.current = Some(next.unwrap_or_else(|| LoadingWindow::new(open.clone())));
    }

    /// Adds rows of the current window to a batch.
    fn add_rows<'a>(
        &mut self,
        rank: &Rank,
        is_first: bool,
        rows: impl Iterator<Item = &'a (u32, PlannedRow)>,
        task: &mut Task,
        reads: &mut Reads,
    ) {
        let Some(current) = &mut self.current else { return };
        let epoch = u32::try_from(current.open.window.epoch).unwrap_or(u32::MAX);
        // The index in the task of each window slot.
        let mut slots: HashMap<u32, u32> = HashMap::new();
        // Rows to be read by range, grouped by shard and neighbourhood, which is often one row
        // group.
        let mut by_range: BTreeMap<(usize, u64), Vec<(u64, u32)>> = BTreeMap::new();
        let neighbourhood = u64::from(self.order.index().block_rows());
        for (position, PlannedRow { window_row, .. }) in rows {
            if is_first || !rank.is_owner(&current.open, window_row.slot) {
                let block = current.open.blocks[window_row.slot as usize];
                let (shard, row) = self.order.index().locate(block, window_row.row.into());
                by_range.entry((shard, row / neighbourhood)).or_default().push((row, *position));
                continue;
            }
            let slot = *slots.entry(window_row.slot).or_insert_with(|| {
                task.slots.push(current.slot(window_row.slot, &self.order, &self.shards, None, reads));
                task.slots.len() as u32 - 1
            });
            task.rows.push(TaskRow { position: *position, epoch, slot, row: window_row.row });
        }
        for ((shard, _), mut wanted) in by_range {
            wanted.sort_unstable();
            let mut rows: Vec<u64> = wanted.iter().map(|(row, _)| *row).collect();
            // A batch that is larger than an epoch contains a row several times.
            rows.dedup();
            let slot = task.slots.len() as u32;
            let index_of = |row| rows.partition_point(|other| *other < row) as u32;
            task.rows.extend(wanted.iter().map(|(row, position)| TaskRow {
                position: *position,
                epoch,
                slot,
                row: index_of(*row),
            }));
            let slot = RowSlot::new(&self.shards, SlotRows::Indices { shard, rows });
            reads.rows.push(slot.clone());
            task.slots.push(slot);
        }
    }

    /// Reads the same share of the next window that batches have taken from the current one.
    fn read_ahead(&mut self, rank: &Rank, taken_rows: u64, reads: &mut Reads) {
        let Some(current) = &mut self.current else { return };
        current.taken_rows += taken_rows;
        let Window { rows, .. } = &current.open.window;
        let next = self
            .next
            .get_or_insert_with(|| LoadingWindow::new(self.order.open(self.order.window_at(rows.end))));
        let blocks = next.open.blocks.len() as u64;
        let due = (blocks * current.taken_rows).div_ceil((rows.end - rows.start).max(1)).min(blocks);
        let owned: Vec<u32> = (0..due as u32).filter(|slot| rank.is_owner(&next.open, *slot)).collect();
        for slot in owned {
            next.slot(slot, &self.order, &self.shards, Some(current), reads);
        }
    }
}

impl LoadingWindow {
    fn new(open: OpenWindow) -> Self {
        let slots = vec![None; open.blocks.len()];
        Self { open, slots, taken_rows: 0 }
    }

    /// The slot of a block. Reads the block, unless it was read already for this window or the
    /// previous one.
    fn slot(
        &mut self,
        slot: u32,
        order: &ShuffleOrder,
        shards: &Arc<ShardReader>,
        previous: Option<&Self>,
        reads: &mut Reads,
    ) -> Arc<RowSlot> {
        let block = self.open.blocks[slot as usize];
        let read_block = || {
            let slot = RowSlot::new(shards, SlotRows::Pieces(order.index().pieces(block)));
            reads.blocks.push(slot.clone());
            slot
        };
        let find_in_previous = || {
            let previous = previous?;
            let same = previous.open.blocks.iter().position(|other| *other == block)?;
            previous.slots[same].clone()
        };
        self.slots[slot as usize].get_or_insert_with(|| find_in_previous().unwrap_or_else(read_block)).clone()
    }
}
