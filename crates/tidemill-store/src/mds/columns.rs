//! The columns of MosaicML diffusion's latents, and their values.

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::index::Column;
use crate::dataset::text_column::TextColumn;

/// The column of text embeddings: the last hidden state of the text encoder, f16, row-major.
pub const TEXT: &str = "caption_latents";

/// The column of a text column of a dataset.
pub fn text_column(column: TextColumn) -> String {
    if column == TextColumn::FIRST { TEXT.to_owned() } else { column.to_string() }
}

/// The column of sizes of image and crop at a resolution, i32 `[6]`: [`crate::TensorSpec::time_ids`].
pub fn time_ids_column(resolution: u32) -> String {
    format!("time_ids_{resolution}")
}

/// The column of image latents at a resolution: f16 `[C, h, w]`, row-major. Empty if the image is
/// too small for the resolution.
pub fn latents_column(resolution: u32) -> String {
    format!("latents_{resolution}")
}

/// The resolutions that have a column of latents.
pub fn latent_resolutions(columns: &[Column]) -> Vec<u32> {
    let of = |column: &Column| column.name.strip_prefix("latents_")?.parse::<u32>().ok();
    let found = columns.iter().filter_map(|column| of(column).filter(|r| latents_column(*r) == column.name));
    found.collect()
}

/// Converts values to little-endian f16.
pub(super) fn to_f16_bytes(values: impl Iterator<Item = f32>) -> Vec<u8> {
    values.flat_map(|value| f16::from_f32(value).to_le_bytes()).collect()
}

/// Converts little-endian f16 to f32.
pub(super) fn to_f32_values(bytes: &[u8]) -> Vec<f32> {
    let halves: Vec<f16> = bytes.as_chunks().0.iter().map(|value| f16::from_le_bytes(*value)).collect();
    halves.to_f32_vec()
}
