//! Abnormal steps: NaN, infinities and loss spikes in single steps; what follows from them (report,
//! skip, rollback, end of the run); and the file that lists their samples.

mod anomalies_log;
pub(super) mod nan_and_spikes;
pub(super) mod rollback;
