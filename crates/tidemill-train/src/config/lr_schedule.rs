//! `train.schedule`: the shape of the learning rate after warm-up. `optimizer/lr_schedule.rs`
//! computes the rate of each step.

use serde::{Deserialize, Serialize};

/// `train.schedule`: how the learning rate changes after warm-up, over a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LrSchedule {
    /// The rate stays constant.
    Constant,
    /// The rate falls linearly to 0.
    Linear,
    /// The rate falls to 0 along half a cosine.
    Cosine,
}
