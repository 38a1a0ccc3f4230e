//! Charts from `metrics.jsonl`.
//!
//! - `line`: the fields of a line. `steps`: all lines of the file, cut and mixed ones included.
//! - `reader`: a run's numbers and charts.
//! - `downsample`: any number of points as a few hundred. `charts`: what is drawn of the fields.

mod charts;
mod downsample;
mod line;
mod reader;
mod steps;

pub use self::downsample::Downsampler;
pub use self::line::StepLine;
pub use self::reader::{Metrics, Waiting, read_metrics};
pub use self::steps::{Event, read_steps};
