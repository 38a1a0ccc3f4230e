//! The split of a dataset into training and validation set, by sample id.

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

/// Seed that separates the draw of the validation set from all other draws by sample id: "tidemill"
/// in ASCII.
const VALIDATION_SEED: u64 = 0x7469_6465_6d69_6c6c;

/// A part of the kept rows: training or validation set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Split {
    /// Rows that the model is trained on.
    #[default]
    Train,
    /// Held-out rows, which are never trained on.
    Validation,
}

impl Split {
    /// Both splits.
    pub const ALL: [Self; 2] = [Self::Train, Self::Validation];

    /// The split of a sample when `share` of all samples is held out: `Validation` if XXH3-64(id as
    /// 8 little-endian bytes, seed "tidemill") / 2^64 < share.
    pub fn from_sample_id(sample_id: u64, share: f64) -> Self {
        let draw =
            XxHash3_64::oneshot_with_seed(VALIDATION_SEED, &sample_id.to_le_bytes()) as f64 / 2f64.powi(64);
        if draw < share { Self::Validation } else { Self::Train }
    }

    /// The name of the split in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "training",
            Self::Validation => "validation",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validation_share_is_respected() {
        for share in [0.0, 0.01, 0.3, 1.0] {
            let held = (0..100_000)
                .filter(|id| Split::from_sample_id(*id, share) == Split::Validation)
                .count() as f64;
            let sigma = (100_000.0 * share * (1.0 - share)).sqrt();
            assert!((held - 100_000.0 * share).abs() <= 5.0 * sigma, "{held} of 100000 at {share}");
        }
    }
}
