//! Engines run the stages over the units of work.

pub mod config;
pub mod dataset_sink;
pub mod device;
pub mod encode_stage;
pub mod incremental_source;
pub mod local;
pub mod machine_resources;
pub mod ray;
mod retry_in_halves;
pub mod sink;
pub mod stage;
pub mod stage_utilization;
pub mod stop_signal;

pub use self::config::{
    EncodeWorkers, EngineConfig, Kind, PrepareWorkers, RayConfig, ReadWorkers, TrainWorkers, Workers,
};
pub use self::encode_stage::{Encoded, Encoder};
pub use self::local::engine::{Local, Summary};
pub use self::local::memory_budget::Memory;
pub use self::local::writer::{JUDGED_FROM, judge};
pub use self::sink::{Attempt, Sink};
pub use self::stage::{Passing, Stage};
pub use self::stage_utilization::Utilisation;
