//! Tidemill, the application: it combines the other crates into one program, which exists as a
//! binary and as a Python module. The other crates do not depend on each other's subject.
//!
//! - `cli`, `verbs`: the command line. `run_file`: what a run does. `error`: errors and exit codes.
//!   `progress`: output.
//! - `engine`, `encode`, `online`: preprocessing on this machine or on Ray, and encoding during
//!   training.
//! - `supervisor`: training workers and their restarts. `sampling`: images from trained weights.
//!   `evaluation`: how good they are. `chart`: plots. `tracking`: W&B and MLflow.
//! - `allocator`, `open_files`, `python`: settings of the process, and the Python interpreter
//!   around it. `hub`: models of the Hugging Face Hub.

pub mod allocator;
mod chart;
pub mod cli;
pub mod encode;
pub mod engine;
pub mod error;
pub mod evaluation;
mod hub;
pub mod online;
pub mod open_files;
pub mod progress;
pub mod python;
pub mod run_file;
pub mod sampling;
pub mod supervisor;
pub mod tracking;
pub mod verbs;

pub use encode::Encode;
pub use error::{Error, Result};
pub use progress::Reporter;
pub use run_file::{Run, RunFile};
