//! A run as one HTML file: it needs no network and no other file.
//!
//! - `report`: what a report consists of: charts, pictures, tables.
//! - `metrics`: charts from `metrics.jsonl`, for any number of steps.
//! - `preprocessing`: charts from `preprocess.jsonl`.
//! - `memory_timeline`: memory over a step, from a trace of PyTorch's profiler.
//! - `page`: the HTML, with uPlot for the charts.

pub mod memory_timeline;
pub mod metrics;
mod page;
pub mod preprocessing;
pub mod report;

pub use self::page::render;
pub use self::report::{Chart, Gallery, Line, Mark, Picture, Report, RunReport, Table};
