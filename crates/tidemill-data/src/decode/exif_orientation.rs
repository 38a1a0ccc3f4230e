//! EXIF orientation: reads it from EXIF or XMP as Pillow's `getexif` does, and turns images
//! upright.

use image::metadata::Orientation;
use image::{DynamicImage, RgbImage};

use crate::decode::image::Rgb8;
use crate::decode::tiff_tags;
use crate::error::RowError;

/// The EXIF tag of the orientation.
const ORIENTATION: u16 = 0x0112;

/// The orientation in EXIF or, if EXIF has no such entry, in XMP. An invalid number leaves the
/// image as it is.
pub fn find_orientation(exif: Option<&[u8]>, xmp: Option<&[u8]>) -> Orientation {
    let exif = exif.map(|exif| exif.strip_prefix(b"Exif\0\0").unwrap_or(exif));
    let number = exif
        .and_then(|exif| tiff_tags::read_number(exif, ORIENTATION))
        .or_else(|| xmp.and_then(orientation_of_xmp));
    number
        .and_then(|number| Orientation::from_exif(number.try_into().ok()?))
        .unwrap_or(Orientation::NoTransforms)
}

/// The first `tiff:Orientation`, as an attribute or as an element.
fn orientation_of_xmp(xmp: &[u8]) -> Option<u64> {
    const NAME: &[u8] = b"tiff:Orientation";
    xmp.windows(NAME.len() + 3).filter_map(|window| window.strip_prefix(NAME)).find_map(|rest| match rest {
        [b'>', digit, _] | [b'=', b'"', digit] if digit.is_ascii_digit() => Some(u64::from(digit - b'0')),
        _ => None,
    })
}

/// Width and height of the upright image.
pub fn upright_size(orientation: Orientation, width: u32, height: u32) -> (u32, u32) {
    // EXIF numbers from 5 on exchange rows and columns.
    if orientation.to_exif() >= 5 { (height, width) } else { (width, height) }
}

/// Turns an image upright.
///
/// # Errors
/// [`RowError::Damaged`] if there are fewer pixels than the size says.
pub fn apply_orientation(image: Rgb8, orientation: Orientation) -> Result<Rgb8, RowError> {
    if orientation == Orientation::NoTransforms {
        return Ok(image);
    }
    let Rgb8 { width, height, pixels } = image;
    let buffer = RgbImage::from_raw(width, height, pixels)
        .ok_or_else(|| RowError::Damaged(format!("fewer pixels than {width}x{height}")))?;
    let mut image = DynamicImage::from(buffer);
    image.apply_orientation(orientation);
    Ok(Rgb8 { width: image.width(), height: image.height(), pixels: image.into_rgb8().into_raw() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// EXIF in little-endian order with the orientation as its only entry.
    fn exif(orientation: u8) -> Vec<u8> {
        let mut bytes = b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0".to_vec();
        bytes.extend([orientation, 0, 0, 0, 0, 0, 0, 0]);
        bytes
    }

    #[test]
    fn exif_comes_before_xmp() {
        let xmp = |text: &str| text.as_bytes().to_vec();
        let cases = [
            (Some(exif(6)), None, 6),
            (Some([b"Exif\0\0", exif(3).as_slice()].concat()), Some(xmp("tiff:Orientation=\"8\"")), 3),
            (None, Some(xmp("<x tiff:Orientation=\"8\">")), 8),
            (None, Some(xmp("<tiff:Orientation>5</tiff:Orientation>")), 5),
            (Some(exif(0)), Some(xmp("tiff:Orientation=\"8\"")), 1),
            (None, Some(xmp("tiff:Orientation=\"9\" tiff:Orientation=\"8\"")), 1),
            (Some(b"nonsense".to_vec()), Some(xmp("tiff:Orientation=\"x\"")), 1),
            (None, None, 1),
        ];
        for (exif, xmp, expected) in cases {
            assert_eq!(
                find_orientation(exif.as_deref(), xmp.as_deref()).to_exif(),
                expected,
                "{exif:?} {xmp:?}"
            );
        }
    }
}
