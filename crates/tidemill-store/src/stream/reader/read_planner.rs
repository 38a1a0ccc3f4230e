//! What has to be read for the batches of one rank, and when. Blocks that the rank owns are read whole, each once
//! for its window and while the window before is dealt out, so that reading goes on evenly. Rows in blocks of other ranks
//! are read by themselves, as are those of the first batch, which need not wait for whole blocks.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::slot::{Slot, Wanted};
use crate::bucket::Bucket;
use crate::shard::reader::Shards;
use crate::stream::order::batch_plan::{Dealer, Plan, PlannedBatch, PlannedRow, Standing};
use crate::stream::order::rank_share::Seat;
use crate::stream::order::shuffle_window::{OpenWindow, Order, Window};

/// The rows of a dataset, by its place in [`Plan::datasets`], in a bucket.
type Key = (usize, Bucket);

/// Plans the batches of a rank, one after the other.
pub struct Planner {
    dealer: Dealer,
    seat: Seat,
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
    pub slots: Vec<Arc<Slot>>,
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
    pub rows: Vec<Arc<Slot>>,
    /// It or later ones need these.
    pub blocks: Vec<Arc<Slot>>,
}

/// The rows of a dataset in a bucket.
struct Sequence {
    shards: Arc<Shards>,
    order: Order,
    now: Option<Loading>,
    next: Option<Loading>,
}

/// A window whose blocks are read.
struct Loading {
    open: OpenWindow,
    slots: Vec<Option<Arc<Slot>>>,
    /// Rows dealt out.
    dealt: u64,
}

impl Planner {
    /// Plans from batch `number` on. `shards` has those of every dataset and bucket of the plan.
    pub fn new(
        plan: &Arc<Plan>,
        number: u64,
        seat: Seat,
        shards: &HashMap<(&str, Bucket), Arc<Shards>>,
    ) -> Self {
        let place = |name: &str| plan.datasets().iter().position(|dataset| dataset == name);
        let sequence = |standing: Standing| {
            let shards = shards.get(&(standing.dataset, standing.bucket))?.clone();
            let key = (place(standing.dataset)?, standing.bucket);
            Some((key, Sequence { shards, order: standing.order.clone(), now: None, next: None }))
        };
        let sequences = plan.standings(number).filter_map(sequence).collect();
        Self { dealer: Dealer::new(plan.clone()), seat, sequences, number, first: true }
    }

    /// The next batch, and what to read now.
    pub fn next(&mut self) -> (Task, Reads) {
        let batch = self.dealer.batch(self.number);
        let mut reads = Reads::default();
        let mut task =
            Task { number: self.number, bucket: batch.bucket, slots: Vec::new(), rows: Vec::new() };
        let places = self.seat.rows(&batch);
        let rows: Vec<(u32, PlannedRow)> =
            places.into_iter().map(|place| (place, batch.rows[place as usize])).collect();
        for (number, window) in batch.windows.iter().enumerate() {
            let Some(sequence) = self.sequences.get_mut(&(window.dataset, batch.bucket)) else { continue };
            sequence.begin(&window.open);
            let rows = rows.iter().filter(|(_, row)| row.window as usize == number);
            sequence.add(&self.seat, self.first, rows, &mut task, &mut reads);
            sequence.read_on(&self.seat, dealt(&batch, number), &mut reads);
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
        seat: &Seat,
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
            if first || !seat.owns(&now.open, at.slot) {
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
            let wanted = Slot::new(&self.shards, Wanted::Places { shard, rows });
            reads.rows.push(wanted.clone());
            task.slots.push(wanted);
        }
    }

    /// Reads as much of the next window as has been dealt out of this one.
    fn read_on(&mut self, seat: &Seat, dealt: u64, reads: &mut Reads) {
        let Some(now) = &mut self.now else { return };
        now.dealt += dealt;
        let Window { rows, .. } = &now.open.window;
        let next =
            self.next.get_or_insert_with(|| Loading::new(self.order.open(self.order.window_at(rows.end))));
        let blocks = next.open.blocks.len() as u64;
        let due = (blocks * now.dealt).div_ceil((rows.end - rows.start).max(1)).min(blocks);
        let owned: Vec<u32> = (0..due as u32).filter(|slot| seat.owns(&next.open, *slot)).collect();
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
        order: &Order,
        shards: &Arc<Shards>,
        before: Option<&Self>,
        reads: &mut Reads,
    ) -> Arc<Slot> {
        let block = self.open.blocks[slot as usize];
        let anew = || {
            let slot = Slot::new(shards, Wanted::Pieces(order.index().pieces(block)));
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
