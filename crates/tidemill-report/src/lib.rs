//! A run as one HTML file: it needs no network and no other file.
//!
//! - `report`: what a report consists of: charts, pictures, tables.
//! - `metrics`: charts from `metrics.jsonl`, for any number of steps.
//! - `preprocessing`: charts from `preprocess.jsonl`.
//! - `trace`: a trace of PyTorch's profiler. `memory_timeline`: memory over its last step. `step_timeline`: what
//!   computes and communicates at which time of it.
//! - `page`: the HTML, with uPlot for the charts.

pub mod memory_timeline;
pub mod metrics;
mod page;
pub mod preprocessing;
pub mod report;
pub mod step_timeline;
pub mod trace;

pub use self::page::render;
pub use self::report::{Chart, Gallery, Line, Mark, Picture, Report, RunReport, Table};
