//! Encoded image bytes to RGB pixels, as Pillow's `ImageOps.exif_transpose` and `convert("RGB")` give them: upright,
//! with transparency laid over white. JPEG goes through libjpeg-turbo, the other formats through the `image` crate.
//! Sizes are checked against bounds before pixels are allocated; whatever is wrong with the bytes becomes a [`RowError`].

mod jpeg;
mod orientation;
mod other;
mod tags;
mod turbo;

use std::cell::Cell;
use std::ops::Range;

pub use image::metadata::Orientation;

use crate::error::RowError;

/// Most encoded bytes of one image.
pub const MAX_BYTES: usize = 256 << 20;

/// Most pixels of one image: 300 MB decoded, above any camera and below any decompression bomb.
pub const MAX_PIXELS: u64 = 100_000_000;

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

/// Neighbouring columns of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Strip {
    /// The columns' pixels.
    pub image: Rgb8,
    /// Columns of the whole image that lie left of them.
    pub left: u32,
    /// Columns of the whole image.
    pub whole: u32,
}

impl Strip {
    /// All columns of an image.
    pub fn whole(image: Rgb8) -> Self {
        Self { left: 0, whole: image.width, image }
    }
}

/// What the header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Info {
    /// Width in pixels of the upright image.
    pub width: u32,
    /// Height in pixels of the upright image.
    pub height: u32,
    /// How the bytes are encoded.
    pub format: Format,
    /// What makes the stored image upright.
    pub orientation: Orientation,
    /// Whether there is a colour profile. Pixels are left as they are.
    pub icc: bool,
}

/// The formats that are decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Baseline and progressive; grey, YCbCr, RGB, CMYK and YCCK.
    Jpeg,
    /// All colour types and depths, interlaced or not.
    Png,
    /// Lossy and lossless; the first frame of an animation.
    WebP,
    /// The first frame.
    Gif,
    /// Windows bitmaps.
    Bmp,
    /// The first page.
    Tiff,
}

impl Format {
    /// The format of a name in the dataset's `format` column.
    pub(crate) fn of_name(name: &str) -> Option<Self> {
        let all = [Self::Jpeg, Self::Png, Self::WebP, Self::Gif, Self::Bmp, Self::Tiff];
        all.into_iter().find(|format| format.name() == name)
    }

    /// The name in the dataset's `format` column.
    pub fn name(self) -> &'static str {
        match self {
            Self::Jpeg => "jpeg",
            Self::Png => "png",
            Self::WebP => "webp",
            Self::Gif => "gif",
            Self::Bmp => "bmp",
            Self::Tiff => "tiff",
        }
    }

    /// Tells the format by the first bytes, whatever the file was called.
    fn of(bytes: &[u8]) -> Result<Self, RowError> {
        if bytes.is_empty() {
            return Err(RowError::Format("the image has no bytes".into()));
        }
        if bytes.len() > MAX_BYTES {
            return Err(RowError::Size(format!("{} encoded bytes are more than {MAX_BYTES}", bytes.len())));
        }
        match bytes {
            [0xff, 0xd8, 0xff, ..] => Ok(Self::Jpeg),
            [0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a, ..] => Ok(Self::Png),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Ok(Self::WebP),
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Ok(Self::Gif),
            [b'B', b'M', ..] => Ok(Self::Bmp),
            [b'I', b'I', 42 | 43, 0, ..] | [b'M', b'M', 0, 42 | 43, ..] => Ok(Self::Tiff),
            [_, _, _, _, b'f', b't', b'y', b'p', ..] => Err(RowError::Format(
                "AVIF and HEIF are not decoded; convert such images to one of the other formats".into(),
            )),
            _ => {
                let start = &bytes[..bytes.len().min(8)];
                Err(RowError::Format(format!(
                    "the first bytes {start:02x?} are those of no JPEG, PNG, WebP, GIF, BMP or TIFF"
                )))
            }
        }
    }
}

/// At how many eighths of its size, in both directions, a JPEG is decoded: 1, 2, 4 or 8, the ones for which
/// libjpeg-turbo has vector code; the others gain little or nothing. Other formats are always whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scale(u8);

impl Scale {
    /// Every pixel.
    pub const FULL: Self = Self(8);

    /// The smallest at which no length has to grow: for every pair (pixels in the original, pixels wanted) the decoded
    /// length is at least the one wanted, or the original's where that is smaller.
    pub fn reaching(lengths: impl IntoIterator<Item = (u32, u32)>) -> Self {
        let eighths = |(original, wanted): (u32, u32)| {
            (8 * u64::from(wanted)).div_ceil(u64::from(original.max(1))).clamp(1, 8) as u8
        };
        Self(lengths.into_iter().map(eighths).max().unwrap_or(8).next_power_of_two())
    }

    /// A side at this scale.
    fn of(self, side: usize) -> usize {
        (side * usize::from(self.0)).div_ceil(8)
    }

    /// Width and height at this scale.
    pub fn of_size(self, (width, height): (u32, u32)) -> (u32, u32) {
        (self.of(width as usize) as u32, self.of(height as usize) as u32)
    }
}

/// What the header says; no pixel is decoded.
///
/// # Errors
/// If the bytes are no image, their header is damaged, or the size is out of bounds.
pub fn probe(bytes: &[u8]) -> Result<Info, RowError> {
    match Format::of(bytes)? {
        Format::Jpeg => jpeg::probe(bytes),
        format => other::probe(bytes, format),
    }
}

/// Decodes an image. Grey becomes RGB, transparency is laid over white, CMYK is converted as Pillow does.
///
/// # Errors
/// As [`probe`], and if the pixel data is truncated or damaged.
pub fn decode(bytes: &[u8]) -> Result<Rgb8, RowError> {
    Ok(decode_strip(bytes, Scale::FULL, None)?.image)
}

/// As [`decode`], but a JPEG at `scale` (sides are rounded up) and, if only some `columns` of the image at that scale
/// are wanted, not many more than those; pixels are what they are in the whole image. Other formats are decoded whole.
///
/// # Errors
/// As [`decode`].
pub fn decode_strip(bytes: &[u8], scale: Scale, columns: Option<Range<u32>>) -> Result<Strip, RowError> {
    match Format::of(bytes)? {
        Format::Jpeg => jpeg::decode(bytes, scale, columns),
        format => Ok(Strip::whole(other::decode(bytes, format)?)),
    }
}

/// Most bytes of a buffer that a thread keeps for its next image.
const MAX_SPARE: usize = 16 << 20;

thread_local! {
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Gives the buffer of an image that nobody needs any more to the next JPEG that this thread decodes: fresh memory comes
/// from the system page by page, which takes time that shows.
pub fn recycle(image: Rgb8) {
    if image.pixels.capacity() <= MAX_SPARE {
        SPARE.set(image.pixels);
    }
}

/// A buffer whose bytes are of no meaning.
fn buffer(bytes: usize) -> Vec<u8> {
    let mut buffer = SPARE.take();
    buffer.resize(bytes, 0);
    buffer
}

fn check_size(width: u32, height: u32) -> Result<(), RowError> {
    if width == 0 || height == 0 {
        return Err(RowError::Size(format!("{width}x{height} has no pixels")));
    }
    if u64::from(width) * u64::from(height) > MAX_PIXELS {
        return Err(RowError::Size(format!("{width}x{height} is more than {MAX_PIXELS} pixels")));
    }
    Ok(())
}

/// `value / 255` rounded to nearest, for products of two bytes and their sums.
fn div_255(value: u32) -> u8 {
    let rounded = value + 128;
    ((rounded + (rounded >> 8)) >> 8) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn division_rounds_to_nearest() {
        for value in 0..=255_u32 * 255 {
            assert_eq!(u32::from(div_255(value)), (2 * value + 255) / 510, "{value}");
        }
    }

    #[test]
    fn the_scale_is_the_smallest_that_reaches() {
        let cases: [(&[(u32, u32)], u8); 8] = [
            (&[(768, 256)], 4),
            (&[(2048, 256)], 1),
            (&[(2047, 256)], 2),
            (&[(512, 256)], 4),
            (&[(256, 256)], 8),
            (&[(100, 256)], 8),
            (&[(4000, 256), (4000, 1024)], 4),
            (&[], 8),
        ];
        for (lengths, eighths) in cases {
            assert_eq!(Scale::reaching(lengths.iter().copied()), Scale(eighths), "{lengths:?}");
        }
    }

    #[test]
    fn nonsense_is_named() {
        let cases: [(&[u8], &str); 8] = [
            (b"", "format: the image has no bytes"),
            (b"<html>", "format: the first bytes [3c, 68, 74, 6d, 6c, 3e]"),
            (b"\0\0\0\x1cftypavif\0\0\0\0", "format: AVIF"),
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
