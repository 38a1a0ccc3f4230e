//! Training without a dataset: pairs are prepared and encoded while the trainer takes steps, anew
//! in each epoch, so that crops, flips and the choice among captions differ. *Online*, encoders
//! work beside the trainer, on GPUs of their own if there are more GPUs than training processes.
//! *Co-located*, the trainer itself encodes each batch before its step.
//!
//! ```text
//!  units ─► windows ─► ranks ─► encoders, ahead of need ─► global batches ─► trainer
//! ```
//!
//! - `config`, `encoding_mode`: the section `[online]` and the option `--mode`.
//! - `online_data`: the pairs of a run as the trainer's data.
//! - `window_plan`: the order of units and rows (shuffle windows). `rank_assignment`: which
//!   rank gets which window, also after a resume with another number of ranks.
//! - `window_prefetch`: the thread that has windows made ahead of need, by `local_encoders`
//!   (with `window_sink`, which assembles windows) or by `remote_encoders` (with
//!   `unit_preparer`, what their workers run).
//! - `batches`: a rank's parts of global batches. `stream_state`: their position in a
//!   checkpoint.
//! - `row_selection`: which rows are trained on. `row_accounting`: counts of all rows.
//!   `quarantine_file`: `quarantine.jsonl`.

mod batches;
pub(crate) mod config;
pub(crate) mod encoding_mode;
mod local_encoders;
mod online_data;
mod quarantine_file;
mod rank_assignment;
mod remote_encoders;
mod row_accounting;
mod row_selection;
mod stream_state;
mod unit_preparer;
mod window_plan;
mod window_prefetch;
mod window_sink;

pub use self::config::OnlineConfig;
pub use self::encoding_mode::EncodingMode;
pub use self::online_data::{EncoderPlacement, OnlineData};
pub use self::remote_encoders::RemoteEncoders;
pub use self::row_accounting::{RowAccounting, StageWork};
pub use self::unit_preparer::UnitPreparer;
