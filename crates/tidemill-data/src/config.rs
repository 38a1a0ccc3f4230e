//! The run file's sections `[source]`, `[filter]` and `[prepare]`, with their defaults and checks.
//! Each `validate` refuses what makes no sense before anything is read.

use std::collections::{BTreeMap, HashSet};
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::source::SOURCE_ERROR;

/// Columns that `Prepare` writes; a carried column may not bear one of these names.
pub(crate) const OUTPUT_COLUMNS: [&str; 9] =
    ["sample_id", "key", "caption", "width", "height", "status", "reason", "source_row", "token_ids"];

/// Pixel sides a U-Net with a factor-8 VAE and three downsamplings can take, within reason.
const RESOLUTIONS: RangeInclusive<u32> = 8..=4096;

/// `[source]`: where the pairs are and what their columns are called.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SourceConfig {
    /// Container of the pairs.
    pub format: Format,
    /// One or several paths or URIs; `*`, `?`, `[..]` and `**` are globs, a directory means every file below it, of
    /// whatever kind.
    pub uri: OneOrMany,
    /// What the columns are called.
    pub columns: Columns,
    /// Further columns to carry into the dataset as they are.
    pub carry: Vec<String>,
    /// Rows a unit of work aims at. Parquet: units end where row groups end, so a larger row group makes a larger unit.
    /// JSON lines: rows of 512 bytes are assumed. All other files are a unit each.
    pub rows_per_unit: u64,
    /// Most rows in one record batch.
    pub rows_per_batch: usize,
}

/// Container formats.
///
/// The fields of all but Parquet have no types of their own. A field becomes a column when `columns`, `carry` or a
/// filter names it: text as it is, for `width`, `height` and scores a number, otherwise its JSON text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Parquet with the encoded image in a binary column, in a struct `{bytes, path}`, or named by a path or URI.
    #[default]
    Parquet,
    /// WebDataset: tar files, plain or gzipped, of members `<key>.jpg`, `<key>.txt`, `<key>.json`. The fields are those
    /// of the JSON object, and `caption` and `txt` with the text of `<key>.txt` if there is one.
    WebDataset,
    /// JSON lines: one object per line, the image as a path (relative to the file) or URI.
    Jsonl,
    /// CSV (RFC 4180) with a header line, the image as in JSON lines. An empty field is a null.
    Csv,
    /// Folders of images, each described by a line of a `metadata.jsonl` in the same folder or above, whose
    /// `file_name` is the image's path from there.
    Images,
}

/// One string or a list of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a path or URI, or a list of them")]
pub enum OneOrMany {
    /// `uri = "a"`
    One(String),
    /// `uri = ["a", "b"]`
    Many(Vec<String>),
}

impl OneOrMany {
    /// The strings, however they were written.
    pub fn as_slice(&self) -> &[String] {
        match self {
            Self::One(uri) => std::slice::from_ref(uri),
            Self::Many(uris) => uris,
        }
    }
}

impl Default for OneOrMany {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

/// Which column plays which part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Columns {
    /// Encoded image: Binary, LargeBinary, BinaryView, a struct of `bytes` and `path`, or strings that are paths or URIs.
    pub image: String,
    /// Captions, one column or several: any string type, dictionaries of strings, or UTF-8 in a binary column.
    pub caption: OneOrMany,
    /// The source's own name of a row: strings or integers. Without it a row is `<file>#<row>`.
    pub key: Option<String>,
    /// Declared width. A row whose declared width is no finite number is quarantined; otherwise the decoded one counts.
    pub width: Option<String>,
    /// Declared height, as `width`.
    pub height: Option<String>,
}

impl Default for Columns {
    fn default() -> Self {
        Self {
            image: "image".into(),
            caption: OneOrMany::One("caption".into()),
            key: None,
            width: None,
            height: None,
        }
    }
}

impl Default for SourceConfig {
    fn default() -> Self {
        Self {
            format: Format::default(),
            uri: OneOrMany::default(),
            columns: Columns::default(),
            carry: Vec::new(),
            rows_per_unit: 4096,
            rows_per_batch: 256,
        }
    }
}

impl SourceConfig {
    /// Checks what can be checked without opening a file.
    ///
    /// # Errors
    /// Names the key and says what would be right.
    pub fn validate(&self) -> Result<()> {
        let uris = self.uri.as_slice();
        if uris.is_empty() || uris.iter().any(|uri| uri.trim().is_empty()) {
            return refuse("source.uri", "give at least one path or URI, such as \"data/*.parquet\"");
        }
        self.validate_columns()?;
        if self.rows_per_unit == 0 {
            return refuse("source.rows_per_unit", "must be at least 1");
        }
        if !(1..=65_536).contains(&self.rows_per_batch) {
            return refuse("source.rows_per_batch", "must be between 1 and 65536");
        }
        Ok(())
    }

    /// The part of [`validate`](Self::validate) that a stage without files needs as well.
    pub(crate) fn validate_columns(&self) -> Result<()> {
        let Columns { image, caption, key, width, height } = &self.columns;
        if caption.as_slice().is_empty() {
            return refuse("source.columns.caption", "name at least one column");
        }
        let mut parts = HashSet::new();
        let others = [Some(image), key.as_ref(), width.as_ref(), height.as_ref()];
        for name in others.into_iter().flatten().chain(caption.as_slice()) {
            if name.is_empty() {
                return refuse("source.columns", "a column's name is empty");
            }
            if !parts.insert(name) {
                return refuse("source.columns", format!("`{name}` plays two parts; name each column once"));
            }
        }
        let mut carried = HashSet::new();
        for name in &self.carry {
            if name == image {
                return refuse(
                    "source.carry",
                    format!("`{name}` is the image column; images are not carried"),
                );
            }
            if OUTPUT_COLUMNS.contains(&name.as_str())
                || name == SOURCE_ERROR
                || name.starts_with("pixels_")
                || name.starts_with("crop_")
            {
                return refuse(
                    "source.carry",
                    format!(
                        "`{name}` is written by the pipeline itself; it cannot be carried under that name"
                    ),
                );
            }
            if !carried.insert(name) {
                return refuse("source.carry", format!("`{name}` is listed twice"));
            }
        }
        Ok(())
    }
}

/// `[filter]`: which readable pairs are worth training on. Every row that a filter refuses is counted under its name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FilterConfig {
    /// Least length of the image's short side in pixels.
    pub min_side: Option<u32>,
    /// Greatest ratio of the long side to the short one, at least 1.
    pub max_aspect: Option<f64>,
    /// Bounds on the caption's length in characters (Unicode scalar values), white space at both ends not counted.
    pub caption_length: Bounds<u32>,
    /// Bounds on numeric columns of the source, by column name. A null is refused, NaN and infinity are quarantined.
    pub score: BTreeMap<String, Bounds<f64>>,
}

/// Inclusive bounds, each of which may be left out.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bounds<T> {
    /// Least value that passes.
    pub min: Option<T>,
    /// Greatest value that passes.
    pub max: Option<T>,
}

impl<T> Default for Bounds<T> {
    fn default() -> Self {
        Self { min: None, max: None }
    }
}

impl<T: PartialOrd> Bounds<T> {
    /// Whether there is any bound.
    pub fn is_set(&self) -> bool {
        self.min.is_some() || self.max.is_some()
    }

    /// Whether the value lies within the bounds.
    pub fn contains(&self, value: &T) -> bool {
        self.min.as_ref().is_none_or(|min| value >= min) && self.max.as_ref().is_none_or(|max| value <= max)
    }

    /// False if no value can pass.
    fn is_possible(&self) -> bool {
        match (&self.min, &self.max) {
            (Some(min), Some(max)) => min <= max,
            (Some(only), None) | (None, Some(only)) => only.partial_cmp(only).is_some(),
            (None, None) => true,
        }
    }
}

impl FilterConfig {
    /// Refuses bounds that no value can meet.
    ///
    /// # Errors
    /// Names the key and says what would be right.
    pub fn validate(&self) -> Result<()> {
        if self.max_aspect.is_some_and(|aspect| !(aspect >= 1.0 && aspect.is_finite())) {
            return refuse(
                "filter.max_aspect",
                "is long side / short side, so it must be a number of at least 1",
            );
        }
        if !self.caption_length.is_possible() {
            return refuse("filter.caption_length", "min is greater than max; no caption could pass");
        }
        for (column, bounds) in &self.score {
            let key = format!("filter.score.{column}");
            if !bounds.is_set() {
                return refuse(key, "give min, max or both");
            }
            if !bounds.is_possible() {
                return refuse(
                    key,
                    "no value could pass: min is greater than max, or a bound is not a number",
                );
            }
        }
        Ok(())
    }
}

/// `[prepare]`: how a kept image becomes pixels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PrepareConfig {
    /// Sides in pixels of the square outputs; a row serves every resolution that its short side reaches.
    pub resolutions: Vec<u32>,
    /// Which square of the image is used.
    pub crop: Crop,
    /// Resampling filter.
    pub resample: Resample,
}

/// Which square of the image is used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Crop {
    /// The largest square in the middle.
    #[default]
    Center,
}

/// Resampling filters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Resample {
    /// Pillow's antialiased bicubic (a = -0.5).
    #[default]
    Bicubic,
}

impl Default for PrepareConfig {
    fn default() -> Self {
        Self { resolutions: vec![256], crop: Crop::default(), resample: Resample::default() }
    }
}

impl PrepareConfig {
    /// Refuses resolutions that cannot be used.
    ///
    /// # Errors
    /// Names the key and says what would be right.
    pub fn validate(&self) -> Result<()> {
        let key = "prepare.resolutions";
        if self.resolutions.is_empty() {
            return refuse(key, "give at least one, such as [256]");
        }
        let mut seen = HashSet::new();
        for &resolution in &self.resolutions {
            if !RESOLUTIONS.contains(&resolution) || resolution % 8 != 0 {
                let (low, high) = RESOLUTIONS.into_inner();
                return refuse(key, format!("{resolution} is no multiple of 8 between {low} and {high}"));
            }
            if !seen.insert(resolution) {
                return refuse(key, format!("{resolution} is listed twice"));
            }
        }
        Ok(())
    }
}

fn refuse(key: impl Into<String>, problem: impl Into<String>) -> Result<()> {
    Err(Error::Config { key: key.into(), problem: problem.into() })
}
