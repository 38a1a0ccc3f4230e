//! The image formats that are decoded.

use crate::decode::limits::MAX_BYTES;
use crate::error::RowError;

/// File name extensions of images, in lower case: of WebDataset members and in image folders.
pub const IMAGE_EXTENSIONS: [&str; 9] = ["jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "avif"];

/// The image formats that are decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// JPEG, baseline and progressive: grey, YCbCr, RGB, CMYK and YCCK.
    Jpeg,
    /// PNG: all colour types and depths, interlaced or not.
    Png,
    /// WebP, lossy and lossless; of an animation the first frame.
    WebP,
    /// GIF; the first frame.
    Gif,
    /// BMP.
    Bmp,
    /// TIFF; the first page.
    Tiff,
}

impl Format {
    /// The format with this name in the dataset's column `format`.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        let all = [Self::Jpeg, Self::Png, Self::WebP, Self::Gif, Self::Bmp, Self::Tiff];
        all.into_iter().find(|format| format.name() == name)
    }

    /// The name in the dataset's column `format`.
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

    /// Detects the format by the first bytes, whatever the file name is.
    ///
    /// # Errors
    /// [`RowError::Format`] for other formats, [`RowError::Size`] for more than [`MAX_BYTES`].
    pub fn detect(bytes: &[u8]) -> Result<Self, RowError> {
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
