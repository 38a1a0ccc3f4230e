//! Encoded image bytes to RGB pixels: JPEG through libjpeg-turbo with the accurate DCT and smooth chroma upsampling,
//! which is bit for bit what Pillow gives; PNG and WebP through the `image` crate. Sizes are checked against bounds
//! before anything is allocated, and whatever is wrong with the bytes becomes a [`RowError`].

use std::io::Cursor;

use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader};
use turbojpeg::{Colorspace, DecompressHeader, Decompressor, PixelFormat};

use crate::error::RowError;

/// Most encoded bytes of one image.
pub const MAX_BYTES: usize = 256 << 20;

/// Most pixels of one image: 300 MB decoded, above any camera and below any decompression bomb.
pub const MAX_PIXELS: u64 = 100_000_000;

/// Most scans of a progressive JPEG: each costs a pass over the whole image, and encoders write about ten.
const MAX_SCANS: u32 = 500;

/// libjpeg's warnings after which the picture is still whole; after all others parts of it are missing or invented.
const HARMLESS: [&str; 3] = [
    "extraneous bytes before marker",
    "Invalid SOS parameters for sequential JPEG",
    "Unknown Adobe color transform",
];

/// An image of 8-bit RGB pixels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rgb8 {
    /// Pixels in a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// Row-major, interleaved: `[height, width, 3]`.
    pub pixels: Vec<u8>,
}

/// Width and height, from the header alone.
///
/// # Errors
/// If the bytes are no image, their header is damaged, or the size is out of bounds.
pub fn probe(bytes: &[u8]) -> Result<(u32, u32), RowError> {
    match container(bytes)? {
        ImageFormat::Jpeg => {
            let header = jpeg_decoder().and_then(|mut d| d.read_header(bytes)).map_err(damaged_jpeg)?;
            jpeg_size(&header)
        }
        format => {
            let decoder = reader(bytes, format).into_decoder().map_err(damaged)?;
            let (width, height) = decoder.dimensions();
            check_size(width, height)
        }
    }
}

/// Decodes an image. Grey becomes RGB, transparency is laid over white, CMYK is converted as Pillow does.
///
/// # Errors
/// As [`probe`], and if the pixel data is truncated or damaged.
pub fn decode(bytes: &[u8]) -> Result<Rgb8, RowError> {
    match container(bytes)? {
        ImageFormat::Jpeg => decode_jpeg(bytes),
        format => decode_other(bytes, format),
    }
}

/// Tells the format by the first bytes, whatever the file was called.
fn container(bytes: &[u8]) -> Result<ImageFormat, RowError> {
    if bytes.is_empty() {
        return Err(RowError::Format("the image has no bytes".into()));
    }
    if bytes.len() > MAX_BYTES {
        return Err(RowError::Size(format!("{} encoded bytes are more than {MAX_BYTES}", bytes.len())));
    }
    match bytes {
        [0xff, 0xd8, 0xff, ..] => Ok(ImageFormat::Jpeg),
        [0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a, ..] => Ok(ImageFormat::Png),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Ok(ImageFormat::WebP),
        _ => {
            let start = &bytes[..bytes.len().min(8)];
            Err(RowError::Format(format!("the first bytes {start:02x?} are those of no JPEG, PNG or WebP")))
        }
    }
}

fn check_size(width: u32, height: u32) -> Result<(u32, u32), RowError> {
    if width == 0 || height == 0 {
        return Err(RowError::Size(format!("{width}x{height} has no pixels")));
    }
    if u64::from(width) * u64::from(height) > MAX_PIXELS {
        return Err(RowError::Size(format!("{width}x{height} is more than {MAX_PIXELS} pixels")));
    }
    Ok((width, height))
}

fn jpeg_decoder() -> turbojpeg::Result<Decompressor> {
    let mut decoder = Decompressor::new()?;
    decoder.set_scan_limit(MAX_SCANS)?;
    Ok(decoder)
}

fn jpeg_size(header: &DecompressHeader) -> Result<(u32, u32), RowError> {
    let side = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    check_size(side(header.width), side(header.height))
}

fn decode_jpeg(bytes: &[u8]) -> Result<Rgb8, RowError> {
    let mut decoder = jpeg_decoder().map_err(damaged_jpeg)?;
    let header = decoder.read_header(bytes).map_err(damaged_jpeg)?;
    let (width, height) = jpeg_size(&header)?;
    let format = match header.colorspace {
        Colorspace::CMYK | Colorspace::YCCK => PixelFormat::CMYK,
        _ => PixelFormat::RGB,
    };
    let pitch = header.width * format.size();
    let mut pixels = vec![0; pitch * header.height];
    let output = turbojpeg::Image {
        pixels: pixels.as_mut_slice(),
        width: header.width,
        pitch,
        height: header.height,
        format,
    };
    match decoder.decompress(bytes, output) {
        Err(turbojpeg::Error::TurboJpegError(warning))
            if HARMLESS.iter().any(|text| warning.contains(text)) => {}
        other => other.map_err(damaged_jpeg)?,
    }
    if format == PixelFormat::CMYK {
        pixels = pixels.as_chunks::<4>().0.iter().flat_map(cmyk_to_rgb).collect();
    }
    Ok(Rgb8 { width, height, pixels })
}

/// Ink as Adobe stores it, inverted (255 is none), to RGB, by Pillow's `cmyk2rgb` (`src/libImaging/Convert.c`).
fn cmyk_to_rgb(&[c, m, y, k]: &[u8; 4]) -> [u8; 3] {
    [c, m, y].map(|ink| k - div_255(u32::from(255 - ink) * u32::from(k)))
}

/// `value / 255` rounded to nearest, for products of two bytes and their sums.
fn div_255(value: u32) -> u8 {
    let rounded = value + 128;
    ((rounded + (rounded >> 8)) >> 8) as u8
}

fn reader(bytes: &[u8], format: ImageFormat) -> ImageReader<Cursor<&[u8]>> {
    // The reader's own default limits bound what the decoder may allocate (512 MiB).
    ImageReader::with_format(Cursor::new(bytes), format)
}

fn decode_other(bytes: &[u8], format: ImageFormat) -> Result<Rgb8, RowError> {
    let decoder = reader(bytes, format).into_decoder().map_err(damaged)?;
    let (width, height) = decoder.dimensions();
    check_size(width, height)?;
    let image = DynamicImage::from_decoder(decoder).map_err(damaged)?;
    let pixels = if image.color().has_alpha() {
        image.into_rgba8().as_raw().as_chunks::<4>().0.iter().flat_map(over_white).collect()
    } else {
        image.into_rgb8().into_raw()
    };
    Ok(Rgb8 { width, height, pixels })
}

fn over_white(&[r, g, b, a]: &[u8; 4]) -> [u8; 3] {
    let alpha = u32::from(a);
    [r, g, b].map(|c| div_255(u32::from(c) * alpha + 255 * (255 - alpha)))
}

fn damaged(error: image::ImageError) -> RowError {
    match error {
        image::ImageError::Limits(limits) => RowError::Size(limits.to_string()),
        other => RowError::Damaged(other.to_string()),
    }
}

fn damaged_jpeg(error: turbojpeg::Error) -> RowError {
    RowError::Damaged(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn png(image: &DynamicImage) -> Vec<u8> {
        let mut bytes = Vec::new();
        image.write_to(&mut Cursor::new(&mut bytes), ImageFormat::Png).unwrap();
        bytes
    }

    #[test]
    fn transparency_is_laid_over_white() {
        let pixel = |alpha| {
            let image =
                DynamicImage::from(image::RgbaImage::from_pixel(1, 1, image::Rgba([10, 20, 200, alpha])));
            decode(&png(&image)).unwrap().pixels
        };
        assert_eq!(pixel(255), [10, 20, 200]);
        assert_eq!(pixel(0), [255, 255, 255]);
        assert_eq!(pixel(128), [132, 137, 227]);
    }

    #[test]
    fn grey_becomes_rgb() {
        let image = DynamicImage::from(image::GrayImage::from_pixel(2, 1, image::Luma([7])));
        let decoded = decode(&png(&image)).unwrap();
        assert_eq!((decoded.width, decoded.height, decoded.pixels), (2, 1, vec![7; 6]));
    }

    #[test]
    fn division_rounds_to_nearest() {
        for value in 0..=255_u32 * 255 {
            assert_eq!(u32::from(div_255(value)), (2 * value + 255) / 510, "{value}");
        }
    }

    #[test]
    fn a_bomb_is_refused_by_its_header() {
        let mut bytes = png(&DynamicImage::new_rgb8(1, 1));
        bytes[16..24].copy_from_slice(&[0, 0, 0x75, 0x30, 0, 0, 0x75, 0x30]); // 30,000 x 30,000
        let crc = {
            // CRC-32 of the IHDR chunk, bit by bit.
            let mut crc = u32::MAX;
            for &byte in &bytes[12..29] {
                crc ^= u32::from(byte);
                for _ in 0..8 {
                    crc = (crc >> 1) ^ (0xedb8_8320 & 0_u32.wrapping_sub(crc & 1));
                }
            }
            !crc
        };
        bytes[29..33].copy_from_slice(&crc.to_be_bytes());
        let error = decode(&bytes).unwrap_err();
        assert!(matches!(&error, RowError::Size(text) if text.contains("30000x30000")), "{error}");
        assert_eq!(probe(&bytes).unwrap_err(), error);
    }

    #[test]
    fn nonsense_is_named() {
        assert!(decode(b"").unwrap_err().to_string().contains("no bytes"));
        assert!(decode(b"<html>").unwrap_err().to_string().starts_with("format: the first bytes [3c, 68"));
        assert!(matches!(decode(&[0xff, 0xd8, 0xff, 0xe0]), Err(RowError::Damaged(_))));
        assert!(matches!(decode(b"RIFF\0\0\0\0WEBPVP8 "), Err(RowError::Damaged(_))));
    }
}
