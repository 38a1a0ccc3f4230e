//! Tidemill, the application: run file, local engine, the `Encode` stage, progress, verbs and command line. The other
//! crates know nothing of each other's business; here they become one program, as a binary and as a Python module.

pub mod allocator;
pub mod cli;
pub mod encode;
pub mod engine;
pub mod error;
pub mod online;
pub mod open_files;
pub mod progress;
pub mod python;
pub mod run_file;
pub mod sampling;
pub mod supervisor;
pub mod verbs;

pub use encode::Encode;
pub use error::{Error, Result};
pub use progress::Reporter;
pub use run_file::{Run, RunFile};
