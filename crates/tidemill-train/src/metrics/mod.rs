//! Everything that makes a run observable: the metrics of each step, as JSON lines in
//! `metrics.jsonl`, as TensorBoard events in `tensorboard/`, and for Prometheus over HTTP;
//! throughput and memory; profiles of single steps.

pub(crate) mod append_only_file;
pub(crate) mod json_lines_log;
pub(crate) mod metrics_log;
pub(crate) mod process_memory;
pub(crate) mod profiler;
pub(crate) mod prometheus;
pub(crate) mod step_metrics;
pub(crate) mod tensorboard;
pub(crate) mod throughput;

pub use step_metrics::{StepMetrics, ValidationMetrics};
