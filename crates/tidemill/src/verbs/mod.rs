//! The verbs of the command line: one file or folder for each. Every verb has an `Args` struct and
//! a function `run`, which returns the verb's result as JSON.

pub mod bench;
pub mod checkpoint;
pub mod compare;
pub mod dedup;
pub mod doctor;
pub mod eval;
pub mod explain;
pub mod export;
pub mod gc;
mod image_files;
pub mod import;
pub mod init;
pub mod inspect;
pub mod mds;
pub mod plan;
pub mod preprocess;
pub mod report;
pub mod run;
pub mod sample;
pub mod shared_arguments;
pub mod synth;
pub mod train;
