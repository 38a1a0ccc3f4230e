//! Resuming a run from its last checkpoint.

use serde_json::Value;

use crate::Error;
use crate::checkpoint::{Checkpoints, Progress};
use crate::config::settings_diff::{Difference, find_differences};
use crate::evaluation::validation_set::ValidationSet;
use crate::observer::Observer;
use crate::optimizer::Optimizer;
use crate::train_spec::TrainSpec;

/// What the progress of a run records besides steps.
pub(super) struct RunRecord {
    /// What a checkpoint must have been made with to be resumed.
    pub identity: Value,
    /// `[train]`, which may change between starts.
    pub settings: Value,
}

/// Returns the data of a run to the snapshots that it started with. Returns messages for the user.
pub(super) fn restore_snapshots(spec: &mut TrainSpec, checkpoint: &Progress) -> Vec<String> {
    if let Some(validation_set) = &mut spec.validation_set {
        validation_set.restore_snapshots(&checkpoint.held_out);
    }
    checkpoint.stream.as_ref().map(|state| spec.data.restore_snapshots(state)).unwrap_or_default()
}

/// Loads the last intact checkpoint, and returns the run's progress: that of the checkpoint, or the
/// start of the run. The user hears of `messages` and of changed settings if the run resumes. All
/// ranks call this together.
///
/// # Errors
/// If a checkpoint cannot be read or belongs to another run.
pub(super) fn load_progress(
    spec: &TrainSpec,
    checkpoints: &Checkpoints,
    record: RunRecord,
    messages: &[String],
    optimizer: &mut Optimizer,
    observer: &mut dyn Observer,
) -> Result<Progress, Error> {
    let RunRecord { identity, settings } = record;
    let averages_at = |step| spec.train.ema_decay_at(step).is_some();
    let log = &mut |message: &str| observer.log(message);
    let restored = checkpoints.load_latest(optimizer, &identity, &averages_at, &spec.world, log)?;
    if let Some(Progress { step, settings: previous, .. }) = &restored {
        observer.on_checkpoint(*step);
        if spec.world.is_first() {
            observer.log(&format!("resuming after step {step}"));
            messages.iter().for_each(|message| observer.log(message));
            for Difference { path, first, second } in find_differences(previous, &settings) {
                observer.log(&format!("train.{path} is {second} from this step on; it was {first}"));
            }
        }
    }
    let held_out = spec.validation_set.as_ref().map(ValidationSet::snapshots).unwrap_or_default();
    let start = || Progress::new(identity, Value::Null);
    Ok(Progress { settings, held_out, ..restored.unwrap_or_else(start) })
}
