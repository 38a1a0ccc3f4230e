//! Communication between the ranks of a training run.

mod collectives;

pub use collectives::{PendingCollective, ProcessGroup, ReduceOp};
