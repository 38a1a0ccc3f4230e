//! Engines run the stages over the units of work and commit each unit.
//!
//! A [`Stage`] is a function from record batch to record batch; a [`Sink`] takes a unit's rows and
//! commits them. There are two engines:
//! - `local`: threads of one process.
//! - [`ray`]: tasks and actors of a Ray cluster.
//!
//! What both share:
//! - `config`, `worker_count`: the section `[engine]`.
//! - `stage`, `encode_stage`; `sink`, [`dataset_sink`], [`dataset_spec`]: what they run and
//!   where rows go.
//! - [`incremental_source`]: an incremental re-run skips what an earlier run computed.
//! - `retry_in_halves`: a batch that fails is retried in halves, down to the guilty row.
//! - `quarantine_limit`: a run with too many unreadable rows stops.
//! - [`stop_signal`], `run_summary`, `stage_utilization`: how a run is stopped and measured.
//! - [`preprocess_log`]: what stages and GPUs do, over time.
//! - [`device`], [`machine_resources`]: GPUs, cores and memory.

pub(crate) mod config;
pub mod dataset_sink;
pub mod dataset_spec;
pub mod device;
pub(crate) mod encode_stage;
pub mod incremental_source;
pub(crate) mod local;
pub mod machine_resources;
pub mod preprocess_log;
pub(crate) mod quarantine_limit;
pub mod ray;
mod retry_in_halves;
mod run_summary;
pub(crate) mod sink;
pub(crate) mod stage;
pub(crate) mod stage_utilization;
pub mod stop_signal;
pub(crate) mod worker_count;

pub use self::config::{
    EncodeWorkers, EngineConfig, EngineKind, PrepareWorkers, RayConfig, ReadWorkers, WorkerPool,
};
pub use self::encode_stage::{EncodeStage, EncodedCounts};
pub use self::local::{LocalEngine, MemoryUsage};
pub use self::quarantine_limit::{BadRows, check_bad_fraction};
pub use self::run_summary::RunSummary;
pub use self::sink::{Attempt, Sink};
pub use self::stage::{PassThrough, Stage};
pub use self::stage_utilization::StageUtilization;
pub use self::worker_count::WorkerCount;
