//! Checkpoints on object storage. Each rank writes its state shard under a name of its own. Once
//! all shards are there, the first rank puts one commit object, only if it is absent. A checkpoint
//! without its commit does not exist, so a crash at any moment leaves the previous checkpoint
//! intact. Any number of ranks loads what any other number wrote.
//!
//! ```text
//! <uri>/step-00001000/<attempt>/rank-0-of-4.safetensors  state shard (`shard_format.rs`)
//! <uri>/step-00001000/<attempt>/rank-1-of-4.json         a shard is complete (`commit.rs`)
//! <uri>/step-00001000/commit.json                        the commit object (`commit.rs`)
//! <uri>/run.json                                         the identity of the run, for people
//! <uri>/start.json                                       the attempt that started last
//! <uri>/owner.json                                       the attempt that trains
//! <uri>/probe                                            put like a commit when a run starts
//! ```
//!
//! - `store.rs`: the checkpoints of a run, and access to their objects
//! - `save.rs`, `load.rs`, `retention.rs`, `best.rs`: write, read and delete checkpoints
//! - `state_copy.rs`: a copy of a rank's state in host memory, while `background_writer.rs` writes
//!   it
//! - `reshard.rs`: loads state that any number of ranks wrote
//! - `shard_slices.rs`, `shard_format.rs`, `parameter.rs`, `commit.rs`, `progress.rs`: what a
//!   checkpoint contains
//! - `ownership.rs`, `writer.rs`, `location_check.rs`: which process may write, and whether all
//!   ranks reach the same location
//! - `run_identity.rs`: what a run must have in common with a checkpoint to resume from it

pub(crate) mod background_writer;
pub(crate) mod best;
mod commit;
mod load;
mod location_check;
mod ownership;
mod parameter;
mod progress;
mod reshard;
mod retention;
pub(crate) mod run_identity;
mod save;
mod shard_format;
mod shard_slices;
pub(crate) mod state_copy;
mod store;
#[cfg(test)]
mod tests;
mod writer;

pub use self::progress::Progress;
pub use self::store::Checkpoints;
pub use self::writer::Writer;
