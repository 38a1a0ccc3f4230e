//! What `synth` is told and what it tells: its settings, the ways rows are broken on purpose, and its report.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Which pairs of colour and shape are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Combinations {
    /// All but the held-out ones: data to train on.
    #[default]
    Trained,
    /// The held-out ones only: data to measure what was learnt.
    HeldOut,
}

/// How much to draw. Equal settings give equal bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SynthConfig {
    /// Rows over all files, broken ones included.
    pub rows: usize,
    /// Parquet files to spread them over, as evenly as possible.
    pub files: usize,
    /// Rows per row group.
    pub row_group_rows: usize,
    /// Seed of every choice.
    pub seed: u64,
    /// Shortest side of a picture, in pixels.
    pub min_side: u32,
    /// Longest side of a picture, in pixels.
    pub max_side: u32,
    /// Which pairs of colour and shape to draw.
    pub combinations: Combinations,
    /// Share of rows to break, in [0, 1]; the ways of breaking take turns.
    pub broken: f64,
}

impl Default for SynthConfig {
    fn default() -> Self {
        Self {
            rows: 20_000,
            files: 4,
            row_group_rows: 1_000,
            seed: 0,
            min_side: 64,
            max_side: 160,
            combinations: Combinations::Trained,
            broken: 0.004,
        }
    }
}

impl SynthConfig {
    /// Refuses settings that cannot be met.
    pub(crate) fn validate(&self) -> Result<()> {
        let refuse = |key, value: String, must| Err(Error::Config { key, value, must });
        if self.rows == 0 {
            return refuse("rows", self.rows.to_string(), "must be at least 1");
        }
        if self.files == 0 || self.files > self.rows {
            return refuse(
                "files",
                self.files.to_string(),
                "must be at least 1 and at most the number of rows",
            );
        }
        if self.row_group_rows == 0 {
            return refuse("row_group_rows", self.row_group_rows.to_string(), "must be at least 1");
        }
        if self.min_side < 16 {
            return refuse("min_side", self.min_side.to_string(), "must be at least 16 pixels");
        }
        if self.max_side < self.min_side || self.max_side > 4096 {
            return refuse(
                "max_side",
                self.max_side.to_string(),
                "must lie between min_side and 4096 pixels",
            );
        }
        if !(0.0..=1.0).contains(&self.broken) {
            return refuse("broken", self.broken.to_string(), "must lie between 0 and 1");
        }
        Ok(())
    }

    /// How many rows are broken.
    pub(crate) fn broken_rows(&self) -> usize {
        // A share of a row count: finite, not negative, and at most `rows`.
        (self.rows as f64 * self.broken).round() as usize
    }
}

/// The ways in which rows are broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Broken {
    /// The JPEG's last half is missing.
    TruncatedJpeg,
    /// The image is a run of zero bytes.
    ZeroBytes,
    /// The JPEG's first two bytes are not those of any image format.
    WrongMagic,
    /// The image has no bytes.
    EmptyImage,
    /// The image is null.
    NullImage,
    /// The caption is null.
    NullCaption,
    /// The score is not a number; image and caption are fine.
    NanScore,
}

impl Broken {
    /// Every way, in the order in which they take turns.
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
    pub const fn unreadable_image(self) -> bool {
        !matches!(self, Self::NullCaption | Self::NanScore)
    }
}

/// What was written; also in the output folder as `synth.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SynthReport {
    /// The settings.
    pub config: SynthConfig,
    /// Rows written, broken ones included.
    pub rows: usize,
    /// The Parquet files.
    pub files: Vec<PathBuf>,
    /// Bytes of the Parquet files together.
    pub bytes: u64,
    /// Rows broken in each way; every way is listed.
    pub broken: BTreeMap<Broken, usize>,
}

impl SynthReport {
    /// Rows whose image cannot be decoded.
    pub fn unreadable_images(&self) -> usize {
        self.broken.iter().filter(|(way, _)| way.unreadable_image()).map(|(_, n)| n).sum()
    }
}
