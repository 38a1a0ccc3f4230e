//! An image that was found in a file and is still encoded.

use std::borrow::Cow;

use crate::decode::avif::error::AvifError;
use crate::decode::avif::properties::Cicp;
use crate::decode::limits::MAX_PIXELS;

/// An image that is still encoded.
#[derive(Debug)]
pub struct Image<'a> {
    pub color: Layer<'a>,
    pub alpha: Option<Layer<'a>>,
    /// True if the colors are multiplied by alpha.
    pub is_premultiplied: bool,
    /// `None` leaves it to the coded image.
    pub cicp: Option<Cicp>,
    pub icc: Option<&'a [u8]>,
    /// The EXIF orientation that undoes as much as the image's rotation and mirror properties.
    pub orientation: u8,
    /// Starts with the TIFF header, or with `Exif\0\0` before it.
    pub exif: Option<Cow<'a, [u8]>>,
    pub xmp: Option<Cow<'a, [u8]>>,
}

/// The tiles of the colors or of the alpha plane.
#[derive(Debug)]
pub struct Layer<'a> {
    pub width: u32,
    pub height: u32,
    pub tile_width: u32,
    pub tile_height: u32,
    pub columns: u32,
    /// Row by row. Each is the parts of a coded image.
    pub tiles: Vec<Vec<&'a [u8]>>,
    pub operating_point: u8,
}

impl<'a> Layer<'a> {
    /// A layer of one tile.
    pub fn single(size: (u32, u32), tile: Vec<&'a [u8]>, operating_point: u8) -> Result<Self, AvifError> {
        let (width, height) = check_size(size)?;
        let tiles = vec![tile];
        Ok(Self { width, height, tile_width: width, tile_height: height, columns: 1, tiles, operating_point })
    }
}

/// Checks the size that a header announces.
pub fn check_size((width, height): (u32, u32)) -> Result<(u32, u32), AvifError> {
    if width == 0 || height == 0 {
        return Err(AvifError::damaged("an image without pixels"));
    }
    if u64::from(width) * u64::from(height) > MAX_PIXELS {
        return Err(AvifError::TooLarge(format!("{width}x{height} is more than {MAX_PIXELS} pixels")));
    }
    Ok((width, height))
}
