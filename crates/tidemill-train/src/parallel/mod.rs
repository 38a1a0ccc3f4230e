//! Data-parallel training on several ranks.
//!
//! - `world.rs`: the ranks, and each rank's share of a batch and of a checkpoint
//! - `collectives.rs`: all-reduce, all-gather, broadcast and exchange between ranks
//! - `rank_agreement.rs`: errors of one rank reach all ranks, and settings are equal on all of them
//! - `bucket_layout.rs`, `element_order.rs`: where each parameter lies in the gradient buckets
//! - `gradient_accumulation.rs`: sums gradients over the micro-batches of a step
//! - `gradient_reduction.rs`: reduces gradient buckets over the ranks during the backward pass
//! - `working_weights.rs`, `weight_gathers.rs`: gathers new weights during the next forward pass
//! - `unit_weights.rs`: weights that are whole only while they are used
//! - `collective_timer.rs`, `communication_time.rs`: how long communication takes
//! - `health_check.rs`, `ring_neighbours.rs`: finds slow and faulty ranks before the first step

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) mod bucket_layout;
mod collective_timer;
mod collectives;
pub(crate) mod communication_time;
pub(crate) mod element_order;
pub(crate) mod gradient_accumulation;
pub(crate) mod gradient_reduction;
pub(crate) mod health_check;
mod rank_agreement;
mod ring_neighbours;
mod unit_weights;
mod weight_gathers;
pub(crate) mod working_weights;
pub(crate) mod world;

/// Locks what hooks and the trainer share. A thread that panicked has left it complete.
fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
