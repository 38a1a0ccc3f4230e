//! What the workers of a Ray cluster call: units of preprocessing, and encoders for online
//! training.

mod online_encoders;
mod unit_worker;

pub use online_encoders::{Preparer, PythonEncoders};
pub use unit_worker::{UnitWorker, portable, ticket, units};
