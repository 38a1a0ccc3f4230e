//! Evaluation of checkpoints: images are drawn from prompts, judged, and summed up in a record per
//! step. Any number of evaluators share the work, on any machines. Training neither waits for them
//! nor knows of them.
//!
//! ```text
//! <uri>/settings.json                                 what is drawn and measured, the same for all
//! <uri>/reference/<tower>-<digest>.safetensors        statistics of the reference images
//! <uri>/step-00000400/checkpoint.txt                  the digest of the checkpoint
//! <uri>/step-00000400/claims/00003.0                  an evaluator works on block 3
//! <uri>/step-00000400/blocks/00003-<attempt>.parquet  its results
//! <uri>/step-00000400/blocks/00003.json               its commit
//! <uri>/step-00000400/pictures/00003-<attempt>/       its pictures
//! <uri>/step-00000400.parquet                         all pictures of a step, with their scores
//! <uri>/step-00000400.json                            the record
//! <uri>/metrics.jsonl, metrics.png, metrics.svg       all records
//! ```
//!
//! - `config.rs`, `models.rs`, `metric.rs`, `prompts/`: the section `[eval]`, the metrics, the prompts
//! - `preflight.rs`: checks before a run starts
//! - `plan.rs`: which pictures are drawn, and the blocks they are shared in
//! - `session.rs`: what is opened once; `follow.rs`: the steps, as they are committed;
//!   `evaluator.rs`: the blocks of one step
//! - `claims.rs`, `block_store.rs`, `block_table.rs`: who works on a block, and its results
//! - `judges.rs`, `reference.rs`, `reference_images.rs`: the networks, and what pictures are
//!   compared with
//! - `summary.rs`, `record.rs`: from pictures to a record; the best step
//! - `reports.rs`: metrics files, grids, plots

mod block_store;
mod block_table;
mod claims;
pub mod config;
mod evaluator;
mod follow;
mod judges;
mod keys;
mod metric;
pub mod models;
mod plan;
mod preflight;
mod prompts;
pub mod record;
mod reference;
mod reference_images;
mod reports;
mod session;
mod settings;
mod summary;

pub use self::block_table::{PictureResult, to_parquet};
pub use self::config::EvalConfig;
pub use self::follow::{Evaluated, Selection, evaluate};
pub use self::judges::{Judged, Judges};
pub use self::metric::{Metric, Tower};
pub use self::models::EvalModels;
pub use self::preflight::check_evaluation;
pub use self::prompts::{PromptList, read_prompt_file, read_prompt_rows};
pub use self::record::{Record, find_best_step, interrupted_error};
pub use self::reference::{compute_statistics, read_statistics};
pub use self::reports::print_record;
pub use self::summary::{References, summarise};
