//! `tidemill mds`: latents from and to MDS.

mod command;
mod export;
mod import;
mod import_models;

pub use self::command::{Args, run};
