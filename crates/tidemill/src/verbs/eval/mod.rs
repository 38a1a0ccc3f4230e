//! `tidemill eval`: judges the images of a run's checkpoints, or the images of a folder.

mod arguments;
mod command;
mod folder;
mod ray_cluster;
mod statistics;

pub use self::arguments::Args;
pub use self::command::{evaluate_run, run};
