//! Abnormal steps: a loss or gradient that is NaN or infinite, and loss spikes.
//!
//! - `nan_and_spikes.rs`: decides whether a step is reported, skipped, rolled back or ends the run
//! - `rollback.rs`: limits rollbacks to the last checkpoint, and describes them
//! - `anomalies_log.rs`: `anomalies.jsonl`, the samples of abnormal steps

mod anomalies_log;
pub(super) mod nan_and_spikes;
pub(super) mod rollback;
