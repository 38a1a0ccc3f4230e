//! Charts from `metrics.jsonl`.
//!
//! - `line`: the fields of a line. `reader`: the file, cut and mixed lines included.
//! - `downsample`: any number of points as a few hundred. `charts`: what is drawn of the fields.

mod charts;
mod downsample;
mod line;
mod reader;

pub use self::reader::{Metrics, read_metrics};
