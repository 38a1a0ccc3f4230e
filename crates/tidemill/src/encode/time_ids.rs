//! The column `time_ids_R`: what SDXL's U-Net is told of an image's size and crop (Podell et al., 2023, section 2.2).

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, FixedSizeBinaryArray, RecordBatch};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, UInt32Type};
use tidemill_store::TensorSpec;

use super::prepared_columns::{find_column, wrong_type};
use crate::error::Result;

/// What is known of an image that is kept at a resolution. All sizes are in pixels.
#[derive(Clone, Copy)]
struct Crop {
    /// Width and height of the upright image.
    image: [u32; 2],
    /// x, y, width and height of the crop in the image.
    crop: [u32; 4],
    /// Width and height that the crop is resized to.
    size: [u32; 2],
    is_flipped: bool,
}

impl Crop {
    /// The original height and width; the crop's top and left in pixels of the resized image, as it would have been
    /// cropped after resizing; and the height and width that the network sees. Of a mirrored image the left is
    /// that of the mirrored image, because diffusers' script mirrors before it crops.
    fn time_ids(self) -> [i32; 6] {
        let Self { image: [width, height], crop: [x, y, crop_width, crop_height], size, is_flipped } = self;
        let left = if is_flipped { width.saturating_sub(x + crop_width) } else { x };
        let scale = |offset: u32, from: u32, to: u32| {
            (f64::from(offset) * f64::from(to) / f64::from(from.max(1))).round() as u32
        };
        let (top, left) = (scale(y, crop_height, size[1]), scale(left, crop_width, size[0]));
        [height, width, top, left, size[1], size[0]].map(|n| i32::try_from(n).unwrap_or(i32::MAX))
    }
}

/// The field and column `time_ids_R` of a batch, null where an image has no crop at this resolution.
///
/// # Errors
/// A column of another type than `Prepare` makes.
pub(super) fn time_ids_column(batch: &RecordBatch, resolution: u32) -> Result<(Field, ArrayRef)> {
    let [width, height] = ["width", "height"].map(|name| numbers(batch, name));
    let (width, height) = (width?, height?);
    let (size, crop) =
        (lists(batch, &format!("size_{resolution}"))?, lists(batch, &format!("crop_{resolution}"))?);
    let flipped: Option<&BooleanArray> =
        batch.column_by_name("flipped").and_then(|column| column.as_boolean_opt());
    let of_row = |row: usize| {
        Some(Crop {
            image: [width(row)?, height(row)?],
            crop: crop(row)?.try_into().ok()?,
            size: size(row)?.try_into().ok()?,
            is_flipped: flipped.is_some_and(|flipped| flipped.is_valid(row) && flipped.value(row)),
        })
    };
    let rows: Vec<Option<[i32; 6]>> =
        (0..batch.num_rows()).map(|row| of_row(row).map(Crop::time_ids)).collect();
    let spec = TensorSpec::time_ids();
    let bytes: Vec<u8> =
        rows.iter().flat_map(|ids| ids.unwrap_or_default()).flat_map(i32::to_le_bytes).collect();
    let valid: NullBuffer = rows.iter().map(Option::is_some).collect();
    let width = spec.bytes() as i32;
    let field = Field::new(format!("time_ids_{resolution}"), DataType::FixedSizeBinary(width), true);
    let column = FixedSizeBinaryArray::try_new(width, bytes.into(), Some(valid))?;
    Ok((field.with_metadata(spec.metadata()), Arc::new(column)))
}

/// The numbers of a column, by row.
fn numbers<'a>(batch: &'a RecordBatch, name: &str) -> Result<impl Fn(usize) -> Option<u32> + use<'a>> {
    let column = find_column(batch, name)?;
    let numbers =
        column.as_primitive_opt::<UInt32Type>().ok_or_else(|| wrong_type(name, column, "UInt32"))?;
    Ok(move |row| numbers.is_valid(row).then(|| numbers.value(row)))
}

/// The lists of numbers of a column, by row.
fn lists<'a>(batch: &'a RecordBatch, name: &str) -> Result<impl Fn(usize) -> Option<Vec<u32>> + use<'a>> {
    let column = find_column(batch, name)?;
    let type_error = || wrong_type(name, column, "FixedSizeList<UInt32>");
    let lists = column.as_fixed_size_list_opt().ok_or_else(type_error)?;
    lists.values().as_primitive_opt::<UInt32Type>().ok_or_else(type_error)?;
    Ok(move |row: usize| {
        lists.is_valid(row).then(|| lists.value(row).as_primitive::<UInt32Type>().values().to_vec())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crops_count_in_pixels_of_the_resized_image() {
        let whole = Crop { image: [640, 480], crop: [80, 0, 480, 480], size: [256, 256], is_flipped: false };
        for (crop, expected) in [
            (whole, [480, 640, 0, 43, 256, 256]),
            (Crop { is_flipped: true, ..whole }, [480, 640, 0, 43, 256, 256]),
            (Crop { crop: [0, 0, 480, 480], ..whole }, [480, 640, 0, 0, 256, 256]),
            (Crop { crop: [0, 0, 480, 480], is_flipped: true, ..whole }, [480, 640, 0, 85, 256, 256]),
            (Crop { crop: [160, 0, 480, 480], is_flipped: true, ..whole }, [480, 640, 0, 0, 256, 256]),
            // A bucket: no cut on one side.
            (
                Crop { image: [300, 900], crop: [0, 100, 300, 600], size: [192, 384], ..whole },
                [900, 300, 64, 0, 384, 192],
            ),
        ] {
            assert_eq!(crop.time_ids(), expected);
        }
    }
}
