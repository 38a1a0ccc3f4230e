//! How `engine.memory` is divided between reading and working. The head of `memory_budget.rs`
//! explains the parts.

/// The reading part is 1 / `READ_PART` of the memory, or more if the units hold much.
pub const READ_PART: u64 = 4;

/// Units that may be open for each reader: the one it reads, and one that it has read and that
/// waits to be prepared.
pub const OPEN_UNITS_PER_READER: usize = 2;

/// Batches of memory that each open unit has for what is read of it.
pub const BATCHES_PER_OPEN_UNIT: u64 = 2;

/// Batches of memory that each reader has for itself: what its file format reads ahead, and the
/// batch that it is building.
pub const BATCHES_PER_READER: u64 = 2;

/// How the memory is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Units read at a time: fewer than requested if each unit holds too much.
    pub readers: usize,
    /// Approximate bytes of a batch as read.
    pub read_batch_bytes: u64,
    /// The most bytes that a unit holds while it is read, such as a row group.
    pub held_per_unit: u64,
    /// Bytes of the working part.
    pub work_bytes: u64,
}

impl MemoryPlan {
    /// Divides `limit` bytes. Returns `None` if they are fewer than [`min_memory`]: the working
    /// part needs `work_bytes`, and a unit holds up to `held_per_unit` bytes while it is read.
    pub fn new(limit: u64, work_bytes: u64, held_per_unit: u64, readers: usize) -> Option<Self> {
        let read_bytes = limit.div_ceil(READ_PART).max(bytes_per_reader(held_per_unit));
        let work_bytes = limit.checked_sub(read_bytes).filter(|rest| *rest >= work_bytes)?;
        let fitting =
            read_bytes.checked_div(bytes_per_reader(held_per_unit)).map_or(readers, |fit| fit as usize);
        let readers = fitting.clamp(1, readers);
        let read_batch_bytes =
            (read_bytes - readers as u64 * held_per_unit) / (readers as u64 * batches_per_reader());
        Some(Self { readers, read_batch_bytes, held_per_unit, work_bytes })
    }

    /// Bytes of the working part that each of this many rows may take.
    pub fn work_bytes_per_row(&self, rows: u64) -> u64 {
        self.work_bytes / rows.max(1)
    }
}

/// The least memory for which there is a [`MemoryPlan`].
pub fn min_memory(work_bytes: u64, held_per_unit: u64) -> u64 {
    (READ_PART * work_bytes)
        .div_ceil(READ_PART - 1)
        .max(work_bytes.saturating_add(bytes_per_reader(held_per_unit)))
}

/// Batches of memory for each reader together with its open units.
fn batches_per_reader() -> u64 {
    BATCHES_PER_READER + BATCHES_PER_OPEN_UNIT * OPEN_UNITS_PER_READER as u64
}

/// The least bytes of a reader: what its unit holds, and a third of that for its batches.
fn bytes_per_reader(held_per_unit: u64) -> u64 {
    held_per_unit.saturating_add(held_per_unit.div_ceil(3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heavy_units_are_read_by_fewer_readers() {
        let plan = |limit, held| {
            let plan = MemoryPlan::new(limit, 300, held, 4)?;
            let per_reader = plan.held_per_unit + batches_per_reader() * plan.read_batch_bytes;
            let read_bytes = plan.readers as u64 * per_reader;
            assert!(read_bytes + plan.work_bytes <= limit && plan.work_bytes >= 300, "{plan:?} of {limit}");
            Some((plan.readers, plan.read_batch_bytes))
        };
        let cases = [
            ("units hold nothing", 4800, 0, Some((4, 50))),
            ("all four fit", 4800, 30, Some((4, 45))),
            ("half of them fit", 4800, 450, Some((2, 25))),
            ("one fits", 4800, 900, Some((1, 50))),
            ("one fits into a larger part", 4800, 3000, Some((1, 166))),
            ("not even one fits", 4800, 3400, None),
            ("too little for the work", 399, 0, None),
        ];
        for (case, limit, held, expected) in cases {
            assert_eq!(plan(limit, held), expected, "{case}");
            let min = min_memory(300, held);
            assert_eq!(limit >= min, expected.is_some(), "{case}: {min}");
            assert!(plan(min, held).is_some() && plan(min - 1, held).is_none(), "{case}: {min}");
        }
    }
}
