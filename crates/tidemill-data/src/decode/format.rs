//! The image formats that are decoded.

use crate::decode::avif;
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
    /// AVIF; of a sequence the first frame.
    Avif,
}

impl Format {
    /// The format with this name in the dataset's column `format`.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        let all = [Self::Jpeg, Self::Png, Self::WebP, Self::Gif, Self::Bmp, Self::Tiff, Self::Avif];
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
            Self::Avif => "avif",
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
            _ if avif::is_avif(bytes) => Ok(Self::Avif),
            _ => Err(RowError::Format(describe_other_format(bytes))),
        }
    }
}

/// Says what bytes are that are no image of ours.
fn describe_other_format(bytes: &[u8]) -> String {
    if let Some(name) = name_other_format(bytes) {
        return format!("{name} is not decoded; only JPEG, PNG, WebP, GIF, BMP, TIFF and AVIF are");
    }
    let start = &bytes[..bytes.len().min(8)];
    format!("the first bytes {start:02x?} are those of no JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF")
}

/// The name of a format that is often met in place of an image, by its first bytes.
fn name_other_format(bytes: &[u8]) -> Option<&'static str> {
    /// The first bytes of formats.
    const STARTS: [(&[u8], &str); 16] = [
        (b"\0\0\0\x0cJXL \r\n\x87\n", "JPEG XL"),
        (b"\xff\x0a", "JPEG XL"),
        (b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG 2000"),
        (b"\xff\x4f\xff\x51", "JPEG 2000"),
        (b"\0\0\x01\0", "an icon (ICO)"),
        (b"\0\0\x02\0", "a cursor (CUR)"),
        (b"8BPS", "Photoshop (PSD)"),
        (b"%PDF", "PDF"),
        (b"%!PS", "PostScript"),
        (b"\x1a\x45\xdf\xa3", "a video (Matroska, WebM)"),
        (b"FLV\x01", "a video (FLV)"),
        (b"\0\0\x01\xba", "a video (MPEG)"),
        (b"PK\x03\x04", "a zip archive"),
        (b"\x1f\x8b", "gzip"),
        (b"qoif", "QOI"),
        (b"DDS ", "DDS"),
    ];
    if let Some((_, name)) = STARTS.iter().find(|(start, _)| bytes.starts_with(start)) {
        return Some(name);
    }
    match bytes {
        [_, _, _, _, b'f', b't', b'y', b'p', brand @ ..] => Some(name_brand(brand.first_chunk())),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'A', b'V', b'I', b' ', ..] => Some("a video (AVI)"),
        [b'P', b'1'..=b'7', b' ' | b'\n' | b'\r' | b'\t', ..] => Some("Netpbm (PPM)"),
        _ => name_text(bytes),
    }
}

/// The format of an ISO media file, by its major brand.
fn name_brand(brand: Option<&[u8; 4]>) -> &'static str {
    match brand {
        Some(b"heic" | b"heix" | b"hevc" | b"hevx" | b"heim" | b"heis" | b"mif1" | b"msf1") => "HEIC",
        Some(b"crx ") => "a raw photograph (CR3)",
        _ => "a video (MP4, QuickTime)",
    }
}

/// The format of a text, by its beginning: web servers send pages in place of images.
fn name_text(bytes: &[u8]) -> Option<&'static str> {
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes).trim_ascii_start();
    let start = text[..text.len().min(1024)].to_ascii_lowercase();
    let has = |part: &[u8]| start.windows(part.len()).any(|window| window == part);
    if start.starts_with(b"<svg") || start.starts_with(b"<?xml") && has(b"<svg") {
        return Some("SVG");
    }
    if start.starts_with(b"<!doctype html") || start.starts_with(b"<html") || has(b"<head") || has(b"<body") {
        return Some("an HTML page");
    }
    match start.first() {
        Some(b'<') => Some("XML"),
        Some(b'{' | b'[') => Some("JSON"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_formats_are_refused_by_name() {
        let cases: [(&[u8], &str); 15] = [
            (b"<!DOCTYPE html><html>404</html>", "an HTML page"),
            (b"\xef\xbb\xbf\n <html>", "an HTML page"),
            (b"<?xml version='1.0'?><!-- x --><svg/>", "SVG"),
            (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG"),
            (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "XML"),
            (b"{\"error\": 403}", "JSON"),
            (b"%PDF-1.7", "PDF"),
            (b"\0\0\0\x1cftypheic\0\0\0\0", "HEIC"),
            (b"\0\0\0\x1cftypisom\0\0\0\0", "a video (MP4, QuickTime)"),
            (b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG 2000"),
            (b"\xff\x0a\0", "JPEG XL"),
            (b"\0\0\x01\0\x01", "an icon (ICO)"),
            (b"RIFF\0\0\0\0AVI LIST", "a video (AVI)"),
            (b"P6\n3 3\n255\n", "Netpbm (PPM)"),
            (b"PK\x03\x04..", "a zip archive"),
        ];
        for (bytes, name) in cases {
            let error = Format::detect(bytes).unwrap_err().to_string();
            assert!(error.starts_with(&format!("format: {name} is not decoded")), "{error}");
        }
        let error = Format::detect(b"abcdefghij").unwrap_err().to_string();
        assert!(error.contains("[61, 62, 63, 64, 65, 66, 67, 68]"), "{error}");
    }
}
