//! The threads that read rows ahead of need and put them together to batches.

pub(crate) mod gather;
pub(crate) mod read_planner;
pub(crate) mod slot;
pub(crate) mod threads;
