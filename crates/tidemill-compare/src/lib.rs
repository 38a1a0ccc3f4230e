//! Blind comparison of models by people.
//!
//! A study has pictures of two or more models for the same prompts. Raters see two at a time, not
//! knowing which model drew which, and answer questions. The answers become preferences with
//! intervals.
//!
//! - `study`: what is compared, and how it is asked.
//! - `database`: one SQLite file with pictures, raters and judgements.
//! - `server`: the page for raters, and what it asks of the server.
//! - `statistics`: shares, strengths, agreement, and their intervals.
//! - `results`: the statistics of a study.
//! - `exchange`: a static copy of the page, answers that come back from it, and tables.

pub mod database;
pub mod error;
pub mod exchange;
pub mod results;
pub mod server;
pub mod statistics;
pub mod study;
mod token;

pub use self::error::{Error, Result};
