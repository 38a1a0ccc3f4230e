//! The entry points: reading headers and decoding images of all formats.

use std::ops::Range;

use crate::decode::format::Format;
use crate::decode::image::{ImageInfo, Rgb8, Strip};
use crate::decode::rendering::Rendering;
use crate::decode::scale::Scale;
use crate::decode::{avif_image, jpeg, other_formats};
use crate::error::RowError;

/// Reads the header; no pixel is decoded.
///
/// # Errors
/// If the bytes are not an image, the header is damaged, or the size is out of bounds.
pub fn probe(bytes: &[u8]) -> Result<ImageInfo, RowError> {
    match Format::detect(bytes)? {
        Format::Jpeg => jpeg::probe(bytes),
        Format::Avif => avif_image::probe(bytes),
        format => other_formats::probe(bytes, format),
    }
}

/// Decodes an image as [`Rendering::default`] says. Grey becomes RGB, and CMYK is converted as by
/// Pillow.
///
/// # Errors
/// As [`probe`], and if the pixel data is truncated or damaged.
pub fn decode(bytes: &[u8]) -> Result<Rgb8, RowError> {
    Ok(decode_strip(bytes, Scale::FULL, None, Rendering::default())?.image)
}

/// Decodes a JPEG at a scale (sides are rounded up). If only some `columns` of the scaled image are
/// wanted, few others are decoded; their pixels equal those of the full image. Other formats are
/// decoded in full.
///
/// # Errors
/// As [`decode`].
pub fn decode_strip(
    bytes: &[u8],
    scale: Scale,
    columns: Option<Range<u32>>,
    rendering: Rendering,
) -> Result<Strip, RowError> {
    match Format::detect(bytes)? {
        Format::Jpeg => jpeg::decode(bytes, scale, columns, rendering.icc),
        Format::Avif => Ok(Strip::from_image(avif_image::decode(bytes, rendering)?)),
        format => Ok(Strip::from_image(other_formats::decode(bytes, format, rendering)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_image_are_refused_with_the_reason() {
        let cases: [(&[u8], &str); 8] = [
            (b"", "format: the image has no bytes"),
            (b"<html>", "format: an HTML page"),
            (b"\0\0\0\x10ftypavif\0\0\0\0", "damaged: "),
            (&[0xff, 0xd8, 0xff, 0xe0], "damaged: "),
            (b"RIFF\0\0\0\0WEBPVP8 ", "damaged: "),
            (b"GIF89a", "damaged: "),
            (b"BM", "damaged: "),
            (b"II*\0", "damaged: "),
        ];
        for (bytes, message) in cases {
            let error = decode(bytes).unwrap_err();
            assert!(error.to_string().starts_with(message), "{error}");
            assert_eq!(probe(bytes).unwrap_err(), error);
        }
    }
}
