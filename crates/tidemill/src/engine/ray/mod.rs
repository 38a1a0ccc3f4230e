//! The engine for a Ray cluster.

pub mod driver;
pub mod engine;
pub mod model_provenance;
pub mod unit_worker;

pub use self::driver::{Deaths, Driver, Heard};
pub use self::engine::{Cluster, Pool, Ray};
