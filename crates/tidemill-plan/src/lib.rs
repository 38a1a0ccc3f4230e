//! What a run takes before it is paid for: throughput, hours, cost, storage, memory, traffic, and
//! what failures add. Pure arithmetic: nothing here reads files, knows torch, or measures.
//!
//! - `config`: `[plan]`: machines, their prices, and measured rates.
//! - `catalog`: the node types and rates that Tidemill brings, with their dates and sources.
//! - `cluster`: the machines of a plan, with everything that the modes need of them.
//! - `workload`: what is trained: samples by resolution, and the network's size.
//! - `modes`: co-located, offline and online: images/s, limit, hours, cost.
//! - `failures`: checkpoint interval and time lost, after Young and Daly.
//! - `memory`, `traffic`, `storage`: bytes of a GPU, of the network, of the dataset.
//! - `dollars`: numbers and amounts for people.
//! - `plan`: all of it for one run, and the mode to choose.

pub mod catalog;
pub mod cluster;
pub mod config;
mod dollars;
pub mod error;
pub mod failures;
pub mod memory;
pub mod modes;
pub mod plan;
#[cfg(test)]
mod plan_tests;
pub mod shard_units;
pub mod storage;
pub mod traffic;
pub mod workload;

pub use self::config::PlanConfig;
pub use self::dollars::{dollars, with_commas};
pub use self::error::{Error, Result};
pub use self::plan::{Plan, make_plan};
pub use self::traffic::Traffic;
pub use self::workload::Workload;
