//! What the workers of a Ray cluster call: units of preprocessing, and encoders for online training.

mod online_encoders;
mod units;

pub use online_encoders::{Preparer, PythonEncoders};
pub use units::{UnitWorker, portable, ticket, units};
