//! When a profile is taken.

use serde::{Deserialize, Serialize};

/// `[train.profile]`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProfileConfig {
    /// Steps of a process before it: the first ones are not what steps will be.
    pub after: u64,
    /// Steps in it.
    pub steps: u64,
}

impl Default for ProfileConfig {
    fn default() -> Self {
        Self { after: 10, steps: 3 }
    }
}
