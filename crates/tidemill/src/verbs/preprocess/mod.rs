//! `tidemill preprocess`: image-caption pairs in, a latent dataset out. Units that are committed
//! already are skipped, so the same command continues where an earlier one stopped.
//!
//! - `command`: the arguments and the order of the work. `report`: the verb's result.
//! - `local_pass`: units on this machine. `ray_pass`: units on a Ray cluster.

mod command;
mod local_pass;
mod ray_pass;
mod report;

pub use self::command::{Args, preprocess, run};
