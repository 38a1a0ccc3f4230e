//! Resampling filters.

use serde::{Deserialize, Serialize};

/// Resampling filters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Resample {
    /// The mean of the pixels covered, as Pillow's `BOX`.
    Area,
    /// A triangle, antialiased.
    Bilinear,
    /// Pillow's antialiased bicubic (a = -0.5).
    #[default]
    Bicubic,
    /// Sinc windowed by a sinc of three lobes.
    Lanczos,
}
