//! The error of the application: its type, the exit code of each error, and its JSON form.

pub mod exit_codes;
mod json_report;
mod types;

pub use self::types::{Error, Result};
