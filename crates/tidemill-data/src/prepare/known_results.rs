//! Results of an earlier run, as the column `known` of an input batch. `Prepare` does not need an
//! image whose size, hashes, scores and latents are known, nor a caption whose text embedding is known.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringArray, StructArray};
use arrow::datatypes::{Field, Float32Type, Schema, UInt32Type, UInt64Type};

use crate::columns::status::{KEPT, QUARANTINED};
use crate::decode::{Format, ImageInfo, Orientation};
use crate::error::Result;
use crate::prepare::image_hashes::ImageHashes;

/// Name of the column.
pub const COLUMN: &str = "known";

/// What precedes the name of a computed score among the tensor columns.
pub const SCORE_PREFIX: &str = "score:";

/// The column with the embeddings that scores are computed from.
pub const EMBEDDING: &str = "embedding";

/// The output columns of `Prepare` that describe an image.
const FIELDS: [&str; 9] =
    ["status", "reason", "caption", "width", "height", "format", "icc", "sha256", "phash"];

/// The prefix of the reason of images that earlier versions could not read.
const NOW_READABLE: &str = "format: AVIF is not decoded";

/// Prefixes of the reasons that mean that an image is unreadable.
const UNREADABLE: [&str; 4] = ["format:", "size:", "damaged:", "missing: the image"];

/// Adds the column `known` at the end of a batch of source columns. `earlier` has the same rows as
/// `Prepare` and `Encode` returned them. `tensors` are the tensor columns (`latents_R`, `text`) of
/// its kept rows that are still valid, and `score:<name>` of the valid scores of all its rows. What `earlier` says of images counts only if one of these
/// holds latents: otherwise it may come from another image column or another version of the code.
///
/// # Errors
/// If the batches differ in length.
pub fn attach(batch: &RecordBatch, earlier: &RecordBatch, tensors: &BTreeSet<String>) -> Result<RecordBatch> {
    let schema = earlier.schema();
    let scores = tensors.iter().filter_map(|name| name.strip_prefix(SCORE_PREFIX));
    let present = FIELDS.into_iter().chain(scores).filter_map(|name| schema.index_of(name).ok());
    let (fields, columns): (Vec<_>, Vec<_>) = present
        .map(|i| (Arc::new(schema.field(i).clone().with_nullable(true)), earlier.column(i).clone()))
        .unzip();
    let known = StructArray::try_new(fields.into(), columns, None)?;
    let names = tensors.iter().map(String::as_str).collect::<Vec<_>>().join(" ");
    let field = Field::new(COLUMN, known.data_type().clone(), true)
        .with_metadata([("tensors".to_owned(), names)].into());
    let schema = batch.schema();
    let fields = schema.fields().iter().cloned().chain([Arc::new(field)]).collect::<Vec<_>>();
    let columns: Vec<ArrayRef> =
        batch.columns().iter().cloned().chain([Arc::new(known) as ArrayRef]).collect();
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
}

/// The column `known` of a batch.
pub struct KnownResults<'a> {
    column: &'a StructArray,
    /// The resolutions whose latents the kept rows have.
    latents: BTreeSet<u32>,
    /// The text encoders, counted from 0, whose embeddings the kept rows have.
    texts: BTreeSet<usize>,
}

/// What is known of a row.
#[derive(Default)]
pub struct KnownResult<'a> {
    /// What the image's header says.
    pub info: Option<ImageInfo>,
    /// Why the image is unreadable.
    pub unreadable: Option<&'a str>,
    /// Hashes of the image.
    pub hashes: ImageHashes,
    /// The tensors that exist, if the row was kept.
    tensors: Option<&'a KnownResults<'a>>,
}

impl KnownResult<'_> {
    /// True if the image's latents at a resolution exist.
    pub fn has_latents(&self, resolution: u32) -> bool {
        self.tensors.is_some_and(|tensors| tensors.latents.contains(&resolution))
    }

    /// True if a text encoder's embedding of the caption exists. Encoders count from 0.
    pub fn has_text(&self, encoder: usize) -> bool {
        self.tensors.is_some_and(|tensors| tensors.texts.contains(&encoder))
    }
}

/// The text encoder, counted from 0, whose embeddings a column holds: `text`, `text_2`, ...
fn text_encoder(column: &str) -> Option<usize> {
    match column.strip_prefix("text")? {
        "" => Some(0),
        number => number.strip_prefix('_')?.parse::<usize>().ok()?.checked_sub(1),
    }
}

impl<'a> KnownResults<'a> {
    /// The column of a batch, if it has one.
    pub fn from_batch(batch: &'a RecordBatch) -> Option<Self> {
        let column = batch.column_by_name(COLUMN)?.as_struct_opt()?;
        let schema = batch.schema();
        let names = schema.field_with_name(COLUMN).ok()?.metadata().get("tensors")?;
        let names = names.split_whitespace();
        let latents = names.clone().filter_map(|name| name.strip_prefix("latents_")?.parse().ok()).collect();
        Some(Self { column, latents, texts: names.filter_map(text_encoder).collect() })
    }

    /// What is known of a row.
    pub fn of_row(&self, row: usize) -> KnownResult<'_> {
        let status = self.text("status", row);
        let tensors = (status == Some(KEPT)).then_some(self);
        // Latents of any resolution are valid only if image column and code are the same.
        if self.latents.is_empty() {
            return KnownResult { tensors, ..KnownResult::default() };
        }
        let reason = self.text("reason", row).filter(|_| status == Some(QUARANTINED));
        let reason = reason.filter(|reason| !reason.starts_with(NOW_READABLE));
        KnownResult {
            info: self.info(row),
            unreadable: reason.filter(|reason| UNREADABLE.iter().any(|kind| reason.starts_with(kind))),
            hashes: ImageHashes { sha256: self.sha256(row), phash: self.phash(row) },
            tensors,
        }
    }

    /// The caption of a row whose text embedding exists.
    pub fn caption(&self, row: usize) -> Option<&str> {
        self.of_row(row).has_text(0).then(|| self.text("caption", row)).flatten()
    }

    /// A score of a row by its name, if it was computed and is still valid.
    pub fn score(&self, name: &str, row: usize) -> Option<f32> {
        let scores = self.column.column_by_name(name)?.as_primitive_opt::<Float32Type>()?;
        scores.is_valid(row).then(|| scores.value(row))
    }

    /// The column of the embeddings, if they are still valid.
    pub fn embeddings(&self) -> Option<&ArrayRef> {
        self.column.column_by_name(EMBEDDING)
    }

    fn info(&self, row: usize) -> Option<ImageInfo> {
        let number = |name| {
            let numbers = self.column.column_by_name(name)?.as_primitive_opt::<UInt32Type>()?;
            numbers.is_valid(row).then(|| numbers.value(row))
        };
        let icc = self.column.column_by_name("icc")?.as_boolean_opt()?;
        Some(ImageInfo {
            width: number("width")?,
            height: number("height")?,
            format: Format::from_name(self.text("format", row)?)?,
            // Width and height are already those of the upright image.
            orientation: Orientation::NoTransforms,
            icc: icc.is_valid(row).then(|| icc.value(row))?,
        })
    }

    fn text(&self, name: &str, row: usize) -> Option<&str> {
        let texts: &StringArray = self.column.column_by_name(name)?.as_string_opt()?;
        texts.is_valid(row).then(|| texts.value(row))
    }

    fn sha256(&self, row: usize) -> Option<[u8; 32]> {
        let digests = self.column.column_by_name("sha256")?.as_fixed_size_binary_opt()?;
        digests.is_valid(row).then(|| digests.value(row))?.try_into().ok()
    }

    fn phash(&self, row: usize) -> Option<u64> {
        let hashes = self.column.column_by_name("phash")?.as_primitive_opt::<UInt64Type>()?;
        hashes.is_valid(row).then(|| hashes.value(row))
    }
}
