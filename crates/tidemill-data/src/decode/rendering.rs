//! How stored pixels become RGB: the background of transparent ones, and colour profiles.

use serde::{Deserialize, Serialize};

/// How stored pixels become RGB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rendering {
    /// What transparent pixels are laid over.
    pub background: [u8; 3],
    /// What becomes of colour profiles.
    pub icc: IccHandling,
}

impl Default for Rendering {
    fn default() -> Self {
        Self { background: [255; 3], icc: IccHandling::default() }
    }
}

/// What becomes of an image's colour profile.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IccHandling {
    /// Pixels stay as they are stored.
    #[default]
    Ignore,
    /// Pixels are converted to sRGB.
    Convert,
}
