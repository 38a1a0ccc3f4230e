//! Rollback: a run returns to its last checkpoint because of an abnormal step, and continues with
//! batches that it has not seen yet.

use std::path::Path;

use crate::Error;
use crate::checkpoint::Progress;

/// Rollbacks in a row, without progress between them, after which a run ends.
const MAX_CONSECUTIVE_ROLLBACKS: u32 = 3;

/// Counts rollbacks that did not help.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ConsecutiveRollbacks {
    /// The furthest step that was rolled back.
    furthest_step: u64,
    /// Rollbacks since a step further than that was reached.
    count: u32,
}

impl ConsecutiveRollbacks {
    /// Counts a rollback from `step`. Returns whether there are too many in a row.
    pub fn record(&mut self, step: u64) -> bool {
        *self = match step > self.furthest_step {
            true => Self { furthest_step: step, count: 1 },
            false => Self { count: self.count + 1, ..*self },
        };
        self.count > MAX_CONSECUTIVE_ROLLBACKS
    }
}

/// The error where there is no checkpoint to roll back to.
pub(crate) fn no_checkpoint(step: u64, output: &Path) -> Error {
    let message =
        format!("there is no checkpoint to roll back to from step {step}; save checkpoints more often");
    Error::Checkpoint { path: output.join("checkpoints"), message }
}

/// The message to the user about a rollback from `step`. `seconds_since_save` is the age of the
/// checkpoint, if it is the last one that this process has saved: the age of an older checkpoint,
/// which is used if the last one is damaged, is not known.
pub(crate) fn rollback_message(
    step: u64,
    restored: &Progress,
    seconds_since_save: Option<f64>,
    is_other_phase: bool,
) -> String {
    let seconds = seconds_since_save.map(|seconds| format!(" and {seconds:.1} s")).unwrap_or_default();
    // The stream of a phase cannot continue in another phase, so that one starts from the
    // checkpoint's position.
    let batches = match is_other_phase {
        true => "come again, because another phase had started",
        false => "are not seen again",
    };
    format!(
        "rolled back to step {} of the last checkpoint; {} steps{seconds} are lost, their batches {batches}",
        restored.step,
        step - restored.step,
    )
}
