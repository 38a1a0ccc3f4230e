//! `[train.profile]`: which steps are profiled.

use serde::{Deserialize, Serialize};

/// `[train.profile]`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProfileConfig {
    /// Steps of this process before the profile starts. The first steps are slower than later ones.
    pub after: u64,
    /// Steps that are profiled.
    pub steps: u64,
}

impl Default for ProfileConfig {
    fn default() -> Self {
        Self { after: 10, steps: 3 }
    }
}
