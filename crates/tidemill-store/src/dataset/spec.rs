//! The specification of a dataset: what all shards of a snapshot share. It is stored in the
//! snapshot's own file, so that a dataset can be rewritten with other settings while readers of an
//! older snapshot continue. `dataset.json` only holds the format version of the folder.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::bucket::Bucket;
use crate::dataset::split::Split;
use crate::dataset::text_column::TextColumn;
use crate::error::{Error, Result};
use crate::float8;

/// The format version that this code writes and reads.
pub const FORMAT_VERSION: u32 = 3;

/// What all shards of a dataset share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DatasetSpec {
    /// The format version, [`FORMAT_VERSION`].
    pub format: u32,
    /// The column `latents_R` of each bucket.
    pub latents: BTreeMap<Bucket, TensorSpec>,
    /// Which part of the VAE's distribution `latents_R` holds, unscaled: `moments`, `mean` or
    /// `sample`.
    pub latents_kind: String,
    /// The column `text`: text embeddings, or token ids if no embeddings are stored.
    pub text: TensorSpec,
    /// The columns of further text encoders, and pooled outputs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub more_text: BTreeMap<TextColumn, TensorSpec>,
    /// Whether each bucket has a column `time_ids_R`, [`TensorSpec::time_ids`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_time_ids: bool,
    /// The frozen models that computed the tensors.
    pub models: ModelDigests,
    /// The VAE's factor between its latents and the input of the U-Net. It is not applied to the
    /// stored latents.
    pub scaling_factor: f64,
    /// The VAE's shift, which is subtracted before that. It is not applied to the stored latents either.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub shift_factor: f64,
    /// Share of the kept rows that is held out for validation, by sample id
    /// ([`Split::from_sample_id`]).
    pub validation_share: f64,
    /// Kept rows in a full row group.
    pub row_group_rows: u32,
    /// The settings that shaped the pixels and token ids.
    pub prepare: Value,
    /// The settings that chose the rows and made their captions, for people to read. The units are
    /// named after them already, so nothing else compares them: the same list under another name
    /// gives the same rows.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub rows: Value,
}

/// A tensor column: FixedSizeBinary, row-major, little-endian.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorSpec {
    /// Type of the stored elements.
    pub dtype: Dtype,
    /// Shape of one row.
    pub shape: Vec<u32>,
}

/// How the elements of a tensor are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Dtype {
    /// 16-bit floats.
    #[serde(rename = "f16")]
    F16,
    /// 8-bit floats with a scale for each row ([`crate::float8`]). Readers give f16.
    #[serde(rename = "f8_e4m3")]
    F8E4m3,
    /// 32-bit integers.
    #[serde(rename = "i32")]
    I32,
}

/// Digests of the folders of the frozen models.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelDigests {
    /// Digest of the VAE.
    pub vae: String,
    /// Digest of the text encoder, or `None` if only token ids are stored.
    pub text_encoder: Option<String>,
    /// Digest of the tokenizer.
    pub tokenizer: String,
    /// The second text encoder and those after it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more_text_encoders: Vec<TextEncoderDigests>,
}

/// Digests of the folders of a text encoder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextEncoderDigests {
    /// Digest of the encoder, or `None` if only token ids are stored.
    pub text_encoder: Option<String>,
    /// Digest of its tokenizer.
    pub tokenizer: String,
}

impl ModelDigests {
    /// All text encoders, in order.
    pub fn text_encoders(&self) -> impl Iterator<Item = TextEncoderDigests> {
        let Self { text_encoder, tokenizer, more_text_encoders, .. } = self;
        let first = TextEncoderDigests { text_encoder: text_encoder.clone(), tokenizer: tokenizer.clone() };
        std::iter::once(first).chain(more_text_encoders.iter().cloned())
    }

    /// The digests for a dataset of token ids, which depends on no encoder.
    #[must_use]
    pub fn without_text_encoders(mut self) -> Self {
        self.text_encoder = None;
        self.more_text_encoders.iter_mut().for_each(|encoder| encoder.text_encoder = None);
        self
    }
}

impl TensorSpec {
    /// A tensor of f16.
    pub fn f16(shape: impl Into<Vec<u32>>) -> Self {
        Self { dtype: Dtype::F16, shape: shape.into() }
    }

    /// The column `time_ids_R`: the original image's height and width, the crop's top and left, and the height
    /// and width that the crop was resized to. The crop counts in pixels of the resized image.
    pub fn time_ids() -> Self {
        Self { dtype: Dtype::I32, shape: vec![6] }
    }

    /// The form in which readers give the tensor.
    pub fn decoded(&self) -> Self {
        Self { dtype: self.dtype.decoded(), shape: self.shape.clone() }
    }

    /// The metadata of the Arrow field: `dtype`, and `shape` as JSON.
    pub fn metadata(&self) -> HashMap<String, String> {
        let shape = self.shape.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        HashMap::from([("dtype".into(), self.dtype.to_string()), ("shape".into(), format!("[{shape}]"))])
    }

    /// Number of elements of one row.
    pub fn elements(&self) -> usize {
        self.shape.iter().map(|n| *n as usize).product()
    }

    /// Stored bytes of one row.
    pub fn bytes(&self) -> usize {
        match self.dtype {
            Dtype::F16 => 2 * self.elements(),
            Dtype::F8E4m3 => float8::HEADER + self.elements(),
            Dtype::I32 => 4 * self.elements(),
        }
    }
}

impl Dtype {
    /// The type in which readers give the elements.
    pub fn decoded(self) -> Self {
        match self {
            Self::F8E4m3 => Self::F16,
            given => given,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F16 => "f16",
            Self::F8E4m3 => "f8_e4m3",
            Self::I32 => "i32",
        })
    }
}

impl DatasetSpec {
    /// Default number of kept rows in a full row group.
    pub const ROW_GROUP_ROWS: u32 = 256;

    /// BLAKE3 of the specification. It changes when anything that shapes the tensors changes.
    pub fn digest(&self) -> String {
        let shaping = Self { rows: Value::Null, ..self.clone() };
        blake3::hash(as_json(&shaping).to_string().as_bytes()).to_hex()[..32].to_owned()
    }

    /// The resolutions in pixels.
    pub fn resolutions(&self) -> BTreeSet<u32> {
        self.latents.keys().map(|bucket| bucket.resolution).collect()
    }

    /// The text columns: [`TextColumn::FIRST`], then the others.
    pub fn text_columns(&self) -> impl Iterator<Item = (TextColumn, &TensorSpec)> {
        let more = self.more_text.iter().map(|(column, spec)| (*column, spec));
        std::iter::once((TextColumn::FIRST, &self.text)).chain(more)
    }

    /// Bytes of a row of all text columns, in the form in which readers give them.
    pub fn text_row_bytes(&self) -> usize {
        self.text_columns().map(|(_, spec)| spec.decoded().bytes()).sum()
    }

    /// Splits a row of all text columns, one behind the other, such as the empty caption, into its columns.
    pub fn split_text_row<'a>(&self, mut row: &'a [u8]) -> Vec<&'a [u8]> {
        let split = |(_, spec): (TextColumn, &TensorSpec)| {
            let (column, rest) = row.split_at(spec.decoded().bytes().min(row.len()));
            row = rest;
            column
        };
        self.text_columns().map(split).collect()
    }

    /// The split of a sample.
    pub fn split(&self, sample_id: u64) -> Split {
        Split::from_sample_id(sample_id, self.validation_share)
    }

    /// Refuses specifications that cannot be written.
    pub(crate) fn validate(&self) -> Result<()> {
        let fail = |key, problem: String| Err(Error::Config { key, problem });
        if self.latents.is_empty() {
            return fail("latents", "there is no resolution; name at least one".into());
        }
        if let Some(column) = self.latents.values().find(|column| column.dtype != Dtype::F16) {
            return fail("latents", format!("{} is not supported; latents are stored as f16", column.dtype));
        }
        for column in self.latents.values().chain(self.text_columns().map(|(_, spec)| spec)) {
            // One page holds the tensors of a row group, and the length of a page is an i32.
            let bytes = column.bytes() * self.row_group_rows as usize;
            if bytes == 0 || bytes > 1 << 30 {
                let rows = (1 << 30) / column.bytes().max(1);
                let problem = format!("rows of {} bytes allow 1 to {rows} rows", column.bytes());
                return fail("row_group_rows", problem);
            }
        }
        if !(0.0..1.0).contains(&self.validation_share) {
            return fail("validation.share", "must be at least 0 and less than 1".into());
        }
        Ok(())
    }
}

/// Datasets without a shift have the digest that they had before there was one.
fn is_zero(shift: &f64) -> bool {
    *shift == 0.0
}

/// Converts to JSON by way of text, so that numbers compare as they were stored.
fn as_json(spec: &DatasetSpec) -> Value {
    serde_json::to_string(spec).ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
}
