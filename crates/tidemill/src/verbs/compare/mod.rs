//! `tidemill compare`: people judge which model's pictures are better, without knowing which model
//! drew which.
//!
//! - `command`: the verb's parts. `study_file`: the study's file, and where its database is.
//! - `new`: draws the pictures. `sources`: where they come from.
//! - `serve`: the page for raters. `invite`: links for them.
//! - `results`: preferences with intervals, and their figure.
//! - `exchange`: a static copy of the page, its answers, and tables.

mod command;
mod exchange;
mod invite;
mod new;
mod results;
mod serve;
mod sources;
mod study_file;

pub use self::command::{Args, run};
pub use self::results::draw_results;
