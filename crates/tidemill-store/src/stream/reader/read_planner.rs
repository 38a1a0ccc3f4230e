//! What has to be read for the batches of one rank, and when. Blocks that the rank owns are read whole, each once
//! for its window and while the window before is dealt out, so that reading goes on evenly. Rows in blocks of other ranks
//! are read by themselves, as are those of the first batch, which need not wait for whole blocks.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::slot::{RowSlot, SlotRows};
use crate::bucket::Bucket;
use crate::shard::reader::ShardReader;
use crate::stream::order::batch_plan::{BatchPlan, BatchPlanner, PlannedBatch, PlannedRow, SequencePosition};
use crate::stream::order::rank_share::Rank;
use crate::stream::order::shuffle_window::{OpenWindow, ShuffleOrder, Window};

/// The rows of a dataset, by its place in [`BatchPlan::datasets`], in a bucket.
type Key = (usize, Bucket);

/// Plans the batches of a rank, one after the other.
pub struct ReadPlanner {
    dealer: BatchPlanner,
    rank: Rank,
    sequences: HashMap<Key, Sequence>,
    /// The next batch.
    number: u64,
    first: bool,
}

/// The batch of a rank.
pub struct Task {
    pub number: u64,
    pub bucket: Bucket,
    /// Where its rows are.
    pub slots: Vec<Arc<RowSlot>>,
    pub rows: Vec<TaskRow>,
}

/// A row of it.
#[derive(Debug, Clone, Copy)]
pub struct TaskRow {
    /// Its place in the global batch.
    pub place: u32,
    pub epoch: u32,
    /// Which of the slots.
    pub slot: u32,
    /// Which row of that.
    pub row: u32,
}

/// What a batch needs read.
#[derive(Default)]
pub struct Reads {
    /// It cannot be made without these.
    pub rows: Vec<Arc<RowSlot>>,
    /// It or later ones need these.
    pub blocks: Vec<Arc<RowSlot>>,
}

/// The rows of a dataset in a bucket.
struct Sequence {
    shards: Arc<ShardReader>,
    order: ShuffleOrder,
    now: Option<Loading>,
    next: Option<Loading>,
}

/// A window whose blocks are read.
struct Loading {
    open: OpenWindow,
    slots: Vec<Option<Arc<RowSlot>>>,
    /// Rows dealt out.
    dealt: u64,
}

impl ReadPlanner {
    /// Plans from batch `number` on. `shards` has those of every dataset and bucket of the plan.
    pub fn new(
        plan: &Arc<BatchPlan>,
        number: u64,
        rank: Rank,
        shards: &HashMap<(&str, Bucket), Arc<ShardReader>>,
    ) -> Self {
        let place = |name: &str| plan.datasets().iter().position(|dataset| dataset == name);
        let sequence = |standing: SequencePosition| {
            let shards = shards.get(&(standing.dataset, standing.bucket))?.clone();
            let key = (place(standing.dataset)?, standing.bucket);
            Some((key, Sequence { shards, order: standing.order.clone(), now: None, next: None }))
        };
        let sequences = plan.sequence_positions(number).filter_map(sequence).collect();
        Self { dealer: BatchPlanner::new(plan.clone()), rank, sequences, number, first: true }
    }

    /// The next batch, and what to read now.
    pub fn next(&mut self) -> (Task, Reads) {
        let batch = self.dealer.batch(self.number);
        let mut reads = Reads::default();
        let mut task =
            Task { number: self.number, bucket: batch.bucket, slots: Vec::new(), rows: Vec::new() };
        let places = self.rank.rows(&batch);
        let rows: Vec<(u32, PlannedRow)> =
            places.into_iter().map(|place| (place, batch.rows[place as usize])).collect();
        for (number, window) in batch.windows.iter().enumerate() {
            let Some(sequence) = self.sequences.get_mut(&(window.dataset, batch.bucket)) else { continue };
            sequence.begin(&window.open);
            let rows = rows.iter().filter(|(_, row)| row.window as usize == number);
            sequence.add(&self.rank, self.first, rows, &mut task, &mut reads);
            sequence.read_on(&self.rank, dealt(&batch, number), &mut reads);
        }
        task.rows.sort_unstable_by_key(|row| row.place);
        self.number += 1;
        self.first = false;
        (task, reads)
    }
}

/// Rows of a batch that are from one of its windows.
fn dealt(batch: &PlannedBatch, window: usize) -> u64 {
    batch.rows.iter().filter(|row| row.window as usize == window).count() as u64
}

impl Sequence {
    /// Goes on to a window.
    fn begin(&mut self, open: &OpenWindow) {
        if self.now.as_ref().is_some_and(|now| now.open.window == open.window) {
            return;
        }
        let next = self.next.take().filter(|next| next.open.window == open.window);
        self.now = Some(next.unwrap_or_else(|| Loading::new(open.clone())));
    }

    /// Adds rows of the current window to a batch.
    fn add<'a>(
        &mut self,
        rank: &Rank,
        first: bool,
        rows: impl Iterator<Item = &'a (u32, PlannedRow)>,
        task: &mut Task,
        reads: &mut Reads,
    ) {
        let Some(now) = &mut self.now else { return };
        let epoch = u32::try_from(now.open.window.epoch).unwrap_or(u32::MAX);
        // Which of the task's slots a block is.
        let mut slots: HashMap<u32, u32> = HashMap::new();
        // Rows to be read by themselves: those of a shard that are near each other, which is often a row group.
        let mut single: BTreeMap<(usize, u64), Vec<(u64, u32)>> = BTreeMap::new();
        let near = u64::from(self.order.index().block_rows());
        for (place, PlannedRow { place: at, .. }) in rows {
            if first || !rank.is_owner(&now.open, at.slot) {
                let (shard, row) =
                    self.order.index().locate(now.open.blocks[at.slot as usize], at.row.into());
                single.entry((shard, row / near)).or_default().push((row, *place));
                continue;
            }
            let slot = *slots.entry(at.slot).or_insert_with(|| {
                task.slots.push(now.slot(at.slot, &self.order, &self.shards, None, reads));
                task.slots.len() as u32 - 1
            });
            task.rows.push(TaskRow { place: *place, epoch, slot, row: at.row });
        }
        for ((shard, _), mut wanted) in single {
            wanted.sort_unstable();
            let mut rows: Vec<u64> = wanted.iter().map(|(row, _)| *row).collect();
            // A batch that is larger than an epoch has a row several times.
            rows.dedup();
            let slot = task.slots.len() as u32;
            let at = |row| rows.partition_point(|other| *other < row) as u32;
            task.rows.extend(wanted.iter().map(|(row, place)| TaskRow {
                place: *place,
                epoch,
                slot,
                row: at(*row),
            }));
            let wanted = RowSlot::new(&self.shards, SlotRows::Places { shard, rows });
            reads.rows.push(wanted.clone());
            task.slots.push(wanted);
        }
    }

    /// Reads as much of the next window as has been dealt out of this one.
    fn read_on(&mut self, rank: &Rank, dealt: u64, reads: &mut Reads) {
        let Some(now) = &mut self.now else { return };
        now.dealt += dealt;
        let Window { rows, .. } = &now.open.window;
        let next =
            self.next.get_or_insert_with(|| Loading::new(self.order.open(self.order.window_at(rows.end))));
        let blocks = next.open.blocks.len() as u64;
        let due = (blocks * now.dealt).div_ceil((rows.end - rows.start).max(1)).min(blocks);
        let owned: Vec<u32> = (0..due as u32).filter(|slot| rank.is_owner(&next.open, *slot)).collect();
        for slot in owned {
            next.slot(slot, &self.order, &self.shards, Some(now), reads);
        }
    }
}

impl Loading {
    fn new(open: OpenWindow) -> Self {
        let slots = vec![None; open.blocks.len()];
        Self { open, slots, dealt: 0 }
    }

    /// The rows of a block, which are read if they are not yet, and unless the window before has them, too.
    fn slot(
        &mut self,
        slot: u32,
        order: &ShuffleOrder,
        shards: &Arc<ShardReader>,
        before: Option<&Self>,
        reads: &mut Reads,
    ) -> Arc<RowSlot> {
        let block = self.open.blocks[slot as usize];
        let anew = || {
            let slot = RowSlot::new(shards, SlotRows::Pieces(order.index().pieces(block)));
            reads.blocks.push(slot.clone());
            slot
        };
        let known = || {
            let before = before?;
            let same = before.open.blocks.iter().position(|other| *other == block)?;
            before.slots[same].clone()
        };
        self.slots[slot as usize].get_or_insert_with(|| known().unwrap_or_else(anew)).clone()
    }
}
