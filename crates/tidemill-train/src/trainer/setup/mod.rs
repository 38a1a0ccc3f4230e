//! Set-up of a run before its first step.
//!
//! - `collective_setup.rs`: what all ranks do together, up to the components of the trainer
//! - `local_setup.rs`: what each rank derives from its spec by itself
//! - `compatibility_checks.rs`: whether data, models and run file fit each other; frozen parameters
//! - `shard_units.rs`: whether and how weights are sharded
//! - `resume.rs`: returns the data and the progress to those of the last checkpoint

pub(super) mod collective_setup;
mod compatibility_checks;
mod local_setup;
mod resume;
mod shard_units;
