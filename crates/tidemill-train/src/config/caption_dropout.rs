//! `train.caption_dropout`: how many captions are replaced by the empty one.

use serde::{Deserialize, Serialize};

/// Shares of the samples, 0 to 1, whose caption is replaced by the empty one; drawn anew every epoch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum CaptionDropout {
    /// One share: a dropped caption is empty for all text encoders.
    All(f64),
    /// A share for each text encoder. Each has its own draws.
    PerEncoder(Vec<f64>),
}

impl CaptionDropout {
    /// The shares: one for all encoders together, or one for each.
    pub fn shares(&self) -> &[f64] {
        match self {
            Self::All(share) => std::slice::from_ref(share),
            Self::PerEncoder(shares) => shares,
        }
    }

    /// Describes what is wrong with the shares, or returns `None`.
    pub(super) fn find_problem(&self) -> Option<String> {
        if self.shares().is_empty() {
            return Some("give a share, or one for each text encoder".into());
        }
        let wrong = self.shares().iter().find(|share| !(0.0..=1.0).contains(*share));
        wrong.map(|share| format!("{share} must be between 0 and 1"))
    }
}

impl From<f64> for CaptionDropout {
    fn from(share: f64) -> Self {
        Self::All(share)
    }
}
