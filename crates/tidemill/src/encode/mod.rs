//! The stage `Encode`, which runs the frozen VAE and text encoder.
//!
//! - `config`: the section `[encode]`.
//! - `stage`: the stage itself. Before it come `score_stage`, scores, and `recaption_stage`, a captioner of
//!   the user's in a process of its own (`captioner_process`).
//! - `text_stage`: its part for captions. `time_ids`: what SDXL is told of an image's size.
//! - `prepared_columns`: its input, from Arrow columns to buffers for tensors.
//! - `encoded_column`: its output, from buffers to Arrow columns.
//! - `batch_sizes`: the batches that a model sees.

mod batch_sizes;
mod captioner_process;
pub(crate) mod config;
mod encoded_column;
mod launch_model;
mod prepared_columns;
mod recaption_stage;
mod score_stage;
pub(crate) mod stage;
mod text_stage;
mod time_ids;

pub use self::config::{ComputeDtype, EncodeConfig, StoredLatents, StoredText};
pub(crate) use self::recaption_stage::RecaptionStage;
pub(crate) use self::score_stage::ScoreStage;
pub use self::stage::Encode;
pub(crate) use self::text_stage::token_counts;
pub use self::text_stage::{SharedTokenizer, open_tokenizers};
