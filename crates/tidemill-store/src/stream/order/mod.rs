//! The order of the stream, as pure functions that neither read nor wait: which rows are in which
//! batch, and which rank gets and reads them.

pub mod batch_plan;
pub mod blocks;
pub mod buckets;
pub mod interleave;
pub mod mix;
pub mod permutation;
pub mod rank_share;
pub mod shuffle_window;
