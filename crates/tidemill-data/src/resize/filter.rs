//! Resampling filters of the key `prepare.resample`.

use serde::{Deserialize, Serialize};

/// A resampling filter, as in Pillow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Resample {
    /// Pillow's `BOX`: the mean of the covered pixels.
    Area,
    /// Pillow's `BILINEAR`: an antialiased triangle.
    Bilinear,
    /// Pillow's `BICUBIC`: antialiased, with a = -0.5.
    #[default]
    Bicubic,
    /// Pillow's `LANCZOS`: a sinc windowed by a sinc of three lobes.
    Lanczos,
}
