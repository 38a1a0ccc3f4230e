//! `tidemill doctor`: what this machine offers.

mod command;
mod nccl_network;

pub use self::command::{Args, run};
