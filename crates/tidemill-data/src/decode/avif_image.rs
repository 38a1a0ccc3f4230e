//! AVIF images as RGB.

use image::{DynamicImage, GrayImage, RgbImage, RgbaImage};

use crate::decode::avif::{self, AvifError, AvifInfo, Pixels};
use crate::decode::exif_orientation::{apply_orientation, upright_size};
use crate::decode::format::Format;
use crate::decode::image::{ImageInfo, Orientation, Rgb8};
use crate::decode::limits::check_size;
use crate::decode::other_formats::{catch_decoder_panic, to_rgb};
use crate::decode::rendering::{IccHandling, Rendering};
use crate::error::RowError;

/// Reads the header.
///
/// # Errors
/// If it is damaged, or the image is too large.
pub fn probe(bytes: &[u8]) -> Result<ImageInfo, RowError> {
    let (AvifInfo { width, height, icc, .. }, orientation) = read_header(bytes)?;
    let (width, height) = upright_size(orientation, width, height);
    Ok(ImageInfo { width, height, format: Format::Avif, orientation, icc })
}

/// Decodes an image.
///
/// # Errors
/// As [`probe`], and if pixels are damaged.
pub fn decode(bytes: &[u8], rendering: Rendering) -> Result<Rgb8, RowError> {
    let (_, orientation) = read_header(bytes)?;
    let stored = catch_decoder_panic(|| to_image(avif::decode(bytes).map_err(to_row_error)?))?;
    let profile = match rendering.icc {
        IccHandling::Convert => avif::icc_profile(bytes),
        IccHandling::Ignore => None,
    };
    apply_orientation(to_rgb(stored, profile, rendering.background), orientation)
}

fn read_header(bytes: &[u8]) -> Result<(AvifInfo, Orientation), RowError> {
    let info = catch_decoder_panic(|| avif::probe(bytes).map_err(to_row_error))?;
    check_size(info.width, info.height)?;
    Ok((info, Orientation::from_exif(info.orientation).unwrap_or(Orientation::NoTransforms)))
}

fn to_image(Pixels { width, height, channels, data }: Pixels) -> Result<DynamicImage, RowError> {
    let image = match channels {
        1 => GrayImage::from_raw(width, height, data).map(DynamicImage::from),
        3 => RgbImage::from_raw(width, height, data).map(DynamicImage::from),
        _ => RgbaImage::from_raw(width, height, data).map(DynamicImage::from),
    };
    image.ok_or_else(|| RowError::Damaged(format!("fewer pixels than {width}x{height}")))
}

fn to_row_error(error: AvifError) -> RowError {
    match error {
        AvifError::Unsupported(what) => RowError::Format(format!("AVIF with {what} is not decoded")),
        AvifError::Damaged(what) => RowError::Damaged(what),
        AvifError::TooLarge(what) => RowError::Size(what),
    }
}
