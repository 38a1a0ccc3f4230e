//! The settings and the report of `synth`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::dataset::defect::Defect;
use crate::drawing::Combinations;
use crate::error::{Error, Result};

/// Settings of the dataset. Equal settings give equal bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SynthConfig {
    /// Rows in all files together, including broken ones.
    pub rows: usize,
    /// Number of Parquet files; rows are distributed evenly.
    pub files: usize,
    /// Rows per row group.
    pub row_group_rows: usize,
    /// Seed of all random choices.
    pub seed: u64,
    /// Minimum side of an image, in pixels.
    pub min_side: u32,
    /// Maximum side of an image, in pixels.
    pub max_side: u32,
    /// Which pairs of colour and shape to draw.
    pub combinations: Combinations,
    /// Fraction of broken rows, in [0, 1]. Broken rows cycle through all defects.
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
    /// Checks that the settings can be met.
    ///
    /// # Errors
    /// [`Error::Config`] for the first one that cannot.
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

    /// The number of broken rows.
    pub(crate) fn count_broken_rows(&self) -> usize {
        // Finite, not negative and at most `rows`, because `validate` checked the fraction.
        (self.rows as f64 * self.broken).round() as usize
    }
}

/// The files written. The output folder holds it as `synth.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SynthReport {
    /// The settings used.
    pub config: SynthConfig,
    /// Rows written, including broken ones.
    pub rows: usize,
    /// The Parquet files.
    pub files: Vec<PathBuf>,
    /// Total size of the Parquet files in bytes.
    pub bytes: u64,
    /// Rows with each defect; lists all defects.
    pub broken: BTreeMap<Defect, usize>,
}

impl SynthReport {
    /// The number of rows whose image cannot be decoded.
    pub fn count_unreadable_images(&self) -> usize {
        self.broken.iter().filter(|(defect, _)| defect.has_unreadable_image()).map(|(_, n)| n).sum()
    }
}
