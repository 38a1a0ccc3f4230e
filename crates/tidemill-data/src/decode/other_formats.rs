//! PNG, WebP, GIF, BMP and TIFF through the `image` crate. Its own limits bound what a decoder allocates beside the
//! pixels, so that a small file with a large profile, text or frame is refused.

use std::io::Cursor;
use std::panic::{self, AssertUnwindSafe};

use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits};

use crate::decode::exif_orientation::{find, upright, upright_size};
use crate::decode::format::Format;
use crate::decode::image::{Info, MAX_PIXELS, Orientation, Rgb8, check_size, div_255};
use crate::decode::tiff_tags;
use crate::error::RowError;

/// Most bytes of the pixels as they are stored: four for each, so that 16-bit images may have fewer.
const MAX_STORED: u64 = 4 * MAX_PIXELS;

/// Most bytes that a decoder may allocate beside them.
const MAX_BESIDE: u64 = 64 << 20;

pub fn probe(bytes: &[u8], format: Format) -> Result<Info, RowError> {
    guarded(|| header(bytes, format))
}

pub fn decode(bytes: &[u8], format: Format) -> Result<Rgb8, RowError> {
    guarded(|| pixels(bytes, format))
}

/// The decoders panic over some damaged images instead of returning an error; both are the row's.
fn guarded<T>(work: impl FnOnce() -> Result<T, RowError>) -> Result<T, RowError> {
    // What the work had in hand is dropped with it.
    panic::catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(RowError::Damaged("the decoder gave up".into())))
}

fn header(bytes: &[u8], format: Format) -> Result<Info, RowError> {
    let mut decoder = open(bytes, format)?;
    let (orientation, icc) = metadata(&mut decoder, bytes, format);
    let (width, height) = decoder.dimensions();
    let (width, height) = upright_size(orientation, width, height);
    Ok(Info { width, height, format, orientation, icc })
}

fn pixels(bytes: &[u8], format: Format) -> Result<Rgb8, RowError> {
    let mut decoder = open(bytes, format)?;
    let (orientation, _) = metadata(&mut decoder, bytes, format);
    let image = eight_bit(DynamicImage::from_decoder(decoder).map_err(damaged)?)?;
    let (width, height) = (image.width(), image.height());
    let pixels = if image.color().has_alpha() {
        image.into_rgba8().as_raw().as_chunks::<4>().0.iter().flat_map(over_white).collect()
    } else {
        image.into_rgb8().into_raw()
    };
    upright(Rgb8 { width, height, pixels }, orientation)
}

/// A decoder that has read the header, with bounds on what it may still allocate.
fn open(bytes: &[u8], format: Format) -> Result<impl ImageDecoder + '_, RowError> {
    let format = match format {
        Format::Jpeg => ImageFormat::Jpeg,
        Format::Png => ImageFormat::Png,
        Format::WebP => ImageFormat::WebP,
        Format::Gif => ImageFormat::Gif,
        Format::Bmp => ImageFormat::Bmp,
        Format::Tiff => ImageFormat::Tiff,
    };
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    reader.limits(at_most(MAX_BESIDE));
    let mut decoder = reader.into_decoder().map_err(damaged)?;
    let (width, height) = decoder.dimensions();
    check_size(width, height)?;
    let stored = decoder.total_bytes();
    if stored > MAX_STORED {
        return Err(RowError::Size(format!("{width}x{height} of {stored} bytes is more than {MAX_STORED}")));
    }
    decoder.set_limits(at_most(stored + MAX_BESIDE)).map_err(damaged)?;
    if format == ImageFormat::Tiff {
        check_strips(bytes, u64::from(width) * u64::from(height))?;
    }
    Ok(decoder)
}

/// Refuses a TIFF of so many pixels in which a JPEG announces many more: its decoder would make room for them.
fn check_strips(tiff: &[u8], pixels: u64) -> Result<(), RowError> {
    const COMPRESSION: u16 = 259;
    const JPEG: [u64; 2] = [6, 7];
    /// Tiles overhang, and samples of subsampled colours are rounded up.
    const OVERHANG: u64 = 1 << 20;
    if !tiff_tags::number(tiff, COMPRESSION).is_some_and(|compression| JPEG.contains(&compression)) {
        return Ok(());
    }
    // A frame's marker, length and bits; in between scans these bytes do not occur.
    let frames = tiff.windows(9).filter(|frame| matches!(frame, [0xff, 0xc0..=0xc2, 0, _, 8 | 12, ..]));
    let sides = frames
        .map(|frame| (u16::from_be_bytes([frame[7], frame[8]]), u16::from_be_bytes([frame[5], frame[6]])));
    let most = MAX_PIXELS.min(2 * pixels + OVERHANG);
    match sides.into_iter().find(|(width, height)| u64::from(*width) * u64::from(*height) > most) {
        Some((width, height)) => {
            Err(RowError::Damaged(format!("a JPEG of {width}x{height} in a TIFF of {pixels} pixels")))
        }
        None => Ok(()),
    }
}

fn at_most(bytes: u64) -> Limits {
    let mut limits = Limits::no_limits();
    limits.max_alloc = Some(bytes);
    limits
}

/// The orientation, and whether there is a colour profile. What the crate would overlook, or make room for whatever its
/// length is said to be, is read where it lies. Unreadable metadata is as good as none, as it is for Pillow.
fn metadata(decoder: &mut impl ImageDecoder, bytes: &[u8], format: Format) -> (Orientation, bool) {
    const XMP: u16 = 700;
    const ICC: u16 = 34675;
    match format {
        Format::WebP => {
            let chunk = |name| webp_chunk(bytes, name);
            (find(chunk(b"EXIF"), chunk(b"XMP ")), chunk(b"ICCP").is_some())
        }
        // The file's own directory is its EXIF.
        Format::Tiff => {
            (find(Some(bytes), tiff_tags::bytes(bytes, XMP)), tiff_tags::bytes(bytes, ICC).is_some())
        }
        Format::Png => {
            let xmp = decoder.xmp_metadata().unwrap_or_default();
            (find(png_chunk(bytes, b"eXIf"), xmp.as_deref()), has_icc(decoder))
        }
        _ => (Orientation::NoTransforms, has_icc(decoder)),
    }
}

fn has_icc(decoder: &mut impl ImageDecoder) -> bool {
    decoder.icc_profile().unwrap_or_default().is_some()
}

/// The first chunk of that name in a PNG file.
fn png_chunk<'a>(bytes: &'a [u8], name: &[u8; 4]) -> Option<&'a [u8]> {
    const SIGNATURE: usize = 8;
    const CHECKSUM: usize = 4;
    let mut rest = bytes.get(SIGNATURE..)?;
    loop {
        let (size, after) = rest.split_first_chunk()?;
        let (found, after) = after.split_first_chunk()?;
        let size = u32::from_be_bytes(*size) as usize;
        match found {
            b"IEND" => return None,
            _ if found == name => return after.get(..size),
            _ => {}
        }
        rest = after.get(size + CHECKSUM..)?;
    }
}

/// The first chunk of that name in a WebP file.
fn webp_chunk<'a>(bytes: &'a [u8], name: &[u8; 4]) -> Option<&'a [u8]> {
    let mut rest = bytes.get(12..)?;
    loop {
        let (&[a, b, c, d, size @ ..], after) = rest.split_first_chunk::<8>()?;
        let size = u32::from_le_bytes(size) as usize;
        if [a, b, c, d] == *name {
            return after.get(..size);
        }
        rest = after.get(size + size % 2..)?;
    }
}

/// Samples of 16 bits become their upper bytes.
fn eight_bit(image: DynamicImage) -> Result<DynamicImage, RowError> {
    let (width, height) = (image.width(), image.height());
    let upper = |samples: Vec<u16>| samples.into_iter().map(|sample| (sample >> 8) as u8).collect();
    let converted = match image {
        DynamicImage::ImageLuma16(grey) => {
            image::GrayImage::from_raw(width, height, upper(grey.into_raw())).map(DynamicImage::from)
        }
        DynamicImage::ImageLumaA16(grey) => {
            image::GrayAlphaImage::from_raw(width, height, upper(grey.into_raw())).map(DynamicImage::from)
        }
        DynamicImage::ImageRgb16(rgb) => {
            image::RgbImage::from_raw(width, height, upper(rgb.into_raw())).map(DynamicImage::from)
        }
        DynamicImage::ImageRgba16(rgba) => {
            image::RgbaImage::from_raw(width, height, upper(rgba.into_raw())).map(DynamicImage::from)
        }
        DynamicImage::ImageRgb32F(_) | DynamicImage::ImageRgba32F(_) => None,
        other => Some(other),
    };
    converted.ok_or_else(|| RowError::Format("pixels of floating-point numbers are not decoded".into()))
}

/// By Pillow's `paste` with a mask (`src/libImaging/Paste.c`).
fn over_white(&[r, g, b, a]: &[u8; 4]) -> [u8; 3] {
    let alpha = u32::from(a);
    [r, g, b].map(|c| div_255(u32::from(c) * alpha + 255 * (255 - alpha)))
}

fn damaged(error: image::ImageError) -> RowError {
    match error {
        image::ImageError::Limits(limits) => RowError::Size(limits.to_string()),
        image::ImageError::Unsupported(what) => RowError::Format(what.to_string()),
        other => RowError::Damaged(other.to_string()),
    }
}
