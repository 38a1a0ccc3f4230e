//! Reads ahead of need in threads, and gathers rows into batches.

pub(crate) mod gather;
pub(crate) mod read_planner;
pub(crate) mod slot;
pub(crate) mod threads;
