//! The stage `Encode`, which runs the frozen VAE and text encoder.
//!
//! - `config`: the section `[encode]`.
//! - `stage`: the stage itself; `score_stage`: the scores that come first.
//! - `prepared_columns`: its input, from Arrow columns to buffers for tensors.
//! - `encoded_column`: its output, from buffers to Arrow columns.

pub(crate) mod config;
mod encoded_column;
mod prepared_columns;
mod score_stage;
pub(crate) mod stage;

pub use self::config::{ComputeDtype, EncodeConfig, StoredLatents, StoredText};
pub(crate) use self::score_stage::ScoreStage;
pub use self::stage::Encode;
