//! The engine for a Ray cluster.
//!
//! - `engine`: hands units to a Ray `driver` (a Python process) and restarts it if it is
//!   killed.
//! - `plan`, `ticket`, `json_exchange`: what the driver and the workers get, as JSON.
//! - `unit_worker`, `unit_stages`, `unit_column`: what a worker does with a unit.
//! - `model_provenance`: checks that all machines encode with the same models.

mod driver;
mod engine;
pub(crate) mod json_exchange;
pub(crate) mod model_provenance;
mod plan;
pub(crate) mod ticket;
mod unit_column;
pub(crate) mod unit_stages;
mod unit_worker;

pub use self::driver::{Driver, DriverEvent, DriverRestarts};
pub use self::engine::RayEngine;
pub use self::json_exchange::{from_json, to_json};
pub use self::model_provenance::{ModelProvenance, check_provenance};
pub use self::plan::{ClusterSpec, PoolSpec};
pub use self::ticket::{DatasetTicket, Ticket};
pub use self::unit_column::UNIT_COLUMN;
pub use self::unit_stages::{encode_rows, prepare_rows};
pub use self::unit_worker::{CommittedUnit, UnitWorker};
