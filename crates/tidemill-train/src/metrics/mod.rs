//! Everything that makes a run observable.
//!
//! - `step_metrics.rs`: the numbers of a step, and totals of a run; `scalars.rs`: with their tags in
//!   TensorBoard
//! - `metrics_log.rs`: the metrics files; `json_lines_log.rs`: `metrics.jsonl`; `tensorboard.rs`:
//!   TensorBoard event files; `append_only_file.rs`: keeps records while the disk is full
//! - `events_log.rs`: `events.jsonl`, what cost the run time
//! - `prometheus.rs`: serves metrics for Prometheus over HTTP
//! - `throughput.rs`, `process_memory.rs`: images per second, TFLOP/s, memory
//! - `profiler.rs`: Chrome traces of single steps

pub(crate) mod append_only_file;
pub(crate) mod events_log;
pub(crate) mod json_lines_log;
pub(crate) mod metrics_log;
pub(crate) mod process_memory;
pub(crate) mod profiler;
pub(crate) mod prometheus;
mod scalars;
pub(crate) mod step_metrics;
pub(crate) mod tensorboard;
pub(crate) mod throughput;

pub use prometheus::PrometheusEndpoint;
pub use step_metrics::{StepMetrics, ValidationMetrics};
pub use tensorboard::EventWriter;
