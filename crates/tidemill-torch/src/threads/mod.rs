//! libtorch's CPU threads: running work on them, and masking signals while they compute.

mod parallel_for;
mod signal_mask;

pub(crate) use parallel_for::{DisjointSlices, parallel_for};
pub(crate) use signal_mask::SignalMask;
