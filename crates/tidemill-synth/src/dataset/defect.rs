//! The ways in which rows are broken on purpose.

use serde::{Deserialize, Serialize};

/// A way in which a row is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Defect {
    /// The second half of the JPEG is missing.
    TruncatedJpeg,
    /// All bytes of the image are zero.
    ZeroBytes,
    /// The first two bytes are not those of any image format.
    WrongMagic,
    /// The image is empty.
    EmptyImage,
    /// The image is null.
    NullImage,
    /// The caption is null.
    NullCaption,
    /// The score is NaN; image and caption are intact.
    NanScore,
}

impl Defect {
    /// All defects, in the order in which the broken rows cycle through them.
    pub const ALL: &'static [Self] = &[
        Self::TruncatedJpeg,
        Self::ZeroBytes,
        Self::WrongMagic,
        Self::EmptyImage,
        Self::NullImage,
        Self::NullCaption,
        Self::NanScore,
    ];

    /// Whether the image cannot be decoded.
    pub const fn has_unreadable_image(self) -> bool {
        !matches!(self, Self::NullCaption | Self::NanScore)
    }
}
