//! The Parquet dataset of scenes: its settings, the rows broken on purpose, and the writer.

mod config;
mod defect;
mod parquet;

pub use config::{SynthConfig, SynthReport};
pub use defect::Defect;
pub use parquet::write_scenes;
