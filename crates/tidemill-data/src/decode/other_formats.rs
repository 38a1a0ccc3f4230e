//! PNG, WebP, GIF, BMP and TIFF through the `image` crate. Limits bound what a decoder allocates
//! besides the pixels, so that a small file with a large profile, text or frame is rejected.

use std::io::Cursor;
use std::panic::{self, AssertUnwindSafe};

use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits};

use crate::decode::color_profile::{ColorModel, convert_to_srgb};
use crate::decode::exif_orientation::{apply_orientation, find_orientation, upright_size};
use crate::decode::format::Format;
use crate::decode::image::{ImageInfo, Orientation, Rgb8, div_255};
use crate::decode::limits::{MAX_PIXELS, check_size};
use crate::decode::rendering::{IccHandling, Rendering};
use crate::decode::tiff_tags;
use crate::error::RowError;

/// Most bytes of the stored pixels: four per pixel of the limit, so 16-bit images may have fewer
/// pixels.
const MAX_STORED_BYTES: u64 = 4 * MAX_PIXELS;

/// Most bytes that a decoder may allocate besides the pixels.
const MAX_EXTRA_BYTES: u64 = 64 << 20;

/// The TIFF tag of the colour profile.
const ICC: u16 = 34675;

pub fn probe(bytes: &[u8], format: Format) -> Result<ImageInfo, RowError> {
    catch_decoder_panic(|| read_info(bytes, format))
}

pub fn decode(bytes: &[u8], format: Format, rendering: Rendering) -> Result<Rgb8, RowError> {
    catch_decoder_panic(|| decode_pixels(bytes, format, rendering))
}

/// Runs a decoder. Decoders panic on some damaged images instead of returning an error; both become
/// an error of the row.
pub fn catch_decoder_panic<T>(work: impl FnOnce() -> Result<T, RowError>) -> Result<T, RowError> {
    // The state of the work is dropped with it, so it cannot be seen broken.
    panic::catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(RowError::Damaged("the decoder gave up".into())))
}

fn read_info(bytes: &[u8], format: Format) -> Result<ImageInfo, RowError> {
    let mut decoder = open_decoder(bytes, format)?;
    let (orientation, icc) = read_metadata(&mut decoder, bytes, format);
    let (width, height) = decoder.dimensions();
    let (width, height) = upright_size(orientation, width, height);
    Ok(ImageInfo { width, height, format, orientation, icc })
}

fn decode_pixels(bytes: &[u8], format: Format, rendering: Rendering) -> Result<Rgb8, RowError> {
    let mut decoder = open_decoder(bytes, format)?;
    let (orientation, _) = read_metadata(&mut decoder, bytes, format);
    let profile = match rendering.icc {
        IccHandling::Convert => read_profile(&mut decoder, bytes, format),
        IccHandling::Ignore => None,
    };
    let image = to_eight_bit(DynamicImage::from_decoder(decoder).map_err(to_row_error)?)?;
    apply_orientation(to_rgb(image, profile.as_deref(), rendering.background), orientation)
}

/// Stored pixels of 8 bits as RGB: converted by the colour profile, if there is one, and laid over the
/// background.
pub fn to_rgb(image: DynamicImage, profile: Option<&[u8]>, background: [u8; 3]) -> Rgb8 {
    let (width, height) = (image.width(), image.height());
    let pixels = if image.color().has_alpha() {
        let is_grey = !image.color().has_color();
        let stored = image.into_rgba8().into_raw();
        let (stored, _) = stored.as_chunks::<4>();
        let blend = |color: [u8; 3], alpha: u8| blend_over(color, alpha, background);
        let colors = || stored.iter().map(|[r, g, b, _]| [*r, *g, *b]);
        let converted =
            profile.and_then(|profile| convert(&colors().flatten().collect::<Vec<_>>(), is_grey, profile));
        match converted {
            Some(converted) => {
                let (converted, _) = converted.as_chunks::<3>();
                converted.iter().zip(stored).flat_map(|(color, pixel)| blend(*color, pixel[3])).collect()
            }
            None => stored.iter().flat_map(|[r, g, b, alpha]| blend([*r, *g, *b], *alpha)).collect(),
        }
    } else {
        let is_grey = !image.color().has_color();
        let stored = image.into_rgb8().into_raw();
        profile.and_then(|profile| convert(&stored, is_grey, profile)).unwrap_or(stored)
    };
    Rgb8 { width, height, pixels }
}

/// RGB pixels as sRGB; `None` if the profile cannot be used. Those of a grey image are all grey.
fn convert(pixels: &[u8], is_grey: bool, profile: &[u8]) -> Option<Vec<u8>> {
    if !is_grey {
        return convert_to_srgb(profile, ColorModel::Rgb, pixels);
    }
    let grey: Vec<u8> = pixels.as_chunks::<3>().0.iter().map(|pixel| pixel[0]).collect();
    convert_to_srgb(profile, ColorModel::Grey, &grey)
}

/// Opens a decoder, reads the header, and limits what the decoder may still allocate.
fn open_decoder(bytes: &[u8], format: Format) -> Result<impl ImageDecoder + '_, RowError> {
    let format = match format {
        Format::Jpeg => ImageFormat::Jpeg,
        Format::Png => ImageFormat::Png,
        Format::WebP => ImageFormat::WebP,
        Format::Gif => ImageFormat::Gif,
        Format::Bmp => ImageFormat::Bmp,
        Format::Tiff => ImageFormat::Tiff,
        Format::Avif => ImageFormat::Avif,
    };
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    reader.limits(allocation_limit(MAX_EXTRA_BYTES));
    let mut decoder = reader.into_decoder().map_err(to_row_error)?;
    let (width, height) = decoder.dimensions();
    check_size(width, height)?;
    let stored = decoder.total_bytes();
    if stored > MAX_STORED_BYTES {
        return Err(RowError::Size(format!(
            "{width}x{height} of {stored} bytes is more than {MAX_STORED_BYTES}"
        )));
    }
    decoder.set_limits(allocation_limit(stored + MAX_EXTRA_BYTES)).map_err(to_row_error)?;
    if format == ImageFormat::Tiff {
        check_embedded_jpegs(bytes, u64::from(width) * u64::from(height))?;
    }
    Ok(decoder)
}

/// Rejects a TIFF with an embedded JPEG that announces many more pixels than the TIFF: the decoder
/// would allocate them.
fn check_embedded_jpegs(tiff: &[u8], pixels: u64) -> Result<(), RowError> {
    const COMPRESSION: u16 = 259;
    const JPEG: [u64; 2] = [6, 7];
    /// Tiles extend past the edges, and samples of subsampled colours are rounded up.
    const OVERHANG: u64 = 1 << 20;
    if !tiff_tags::read_number(tiff, COMPRESSION).is_some_and(|compression| JPEG.contains(&compression)) {
        return Ok(());
    }
    // Marker, length and bits of a frame header. These bytes do not occur within scans.
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

fn allocation_limit(bytes: u64) -> Limits {
    let mut limits = Limits::no_limits();
    limits.max_alloc = Some(bytes);
    limits
}

/// Reads the orientation, and whether there is a colour profile. Metadata that the crate overlooks,
/// or for which it would allocate any announced length, is read from the bytes directly. Unreadable
/// metadata is ignored, as by Pillow.
fn read_metadata(decoder: &mut impl ImageDecoder, bytes: &[u8], format: Format) -> (Orientation, bool) {
    const XMP: u16 = 700;
    match format {
        Format::WebP => {
            let chunk = |name| webp_chunk(bytes, name);
            (find_orientation(chunk(b"EXIF"), chunk(b"XMP ")), chunk(b"ICCP").is_some())
        }
        // The directory of a TIFF is its EXIF.
        Format::Tiff => (
            find_orientation(Some(bytes), tiff_tags::read_bytes(bytes, XMP)),
            tiff_tags::read_bytes(bytes, ICC).is_some(),
        ),
        Format::Png => {
            let xmp = decoder.xmp_metadata().unwrap_or_default();
            (find_orientation(png_chunk(bytes, b"eXIf"), xmp.as_deref()), has_color_profile(decoder))
        }
        _ => (Orientation::NoTransforms, has_color_profile(decoder)),
    }
}

/// The colour profile.
fn read_profile(decoder: &mut impl ImageDecoder, bytes: &[u8], format: Format) -> Option<Vec<u8>> {
    match format {
        Format::WebP => webp_chunk(bytes, b"ICCP").map(<[u8]>::to_vec),
        Format::Tiff => tiff_tags::read_bytes(bytes, ICC).map(<[u8]>::to_vec),
        _ => decoder.icc_profile().unwrap_or_default(),
    }
}

fn has_color_profile(decoder: &mut impl ImageDecoder) -> bool {
    decoder.icc_profile().unwrap_or_default().is_some()
}

/// The first chunk with this name in a PNG file.
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

/// The first chunk with this name in a WebP file.
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

/// Reduces 16-bit samples to their upper bytes.
///
/// # Errors
/// [`RowError::Format`] for floating-point samples.
fn to_eight_bit(image: DynamicImage) -> Result<DynamicImage, RowError> {
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

/// Lays a pixel over a background, by Pillow's `paste` with a mask (`src/libImaging/Paste.c`).
fn blend_over(color: [u8; 3], alpha: u8, background: [u8; 3]) -> [u8; 3] {
    let alpha = u32::from(alpha);
    std::array::from_fn(|c| div_255(u32::from(color[c]) * alpha + u32::from(background[c]) * (255 - alpha)))
}

fn to_row_error(error: image::ImageError) -> RowError {
    match error {
        image::ImageError::Limits(limits) => RowError::Size(limits.to_string()),
        image::ImageError::Unsupported(what) => RowError::Format(what.to_string()),
        other => RowError::Damaged(other.to_string()),
    }
}
