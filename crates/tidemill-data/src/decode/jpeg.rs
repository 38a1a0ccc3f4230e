//! JPEG through libjpeg-turbo with the accurate DCT and smooth chroma upsampling, which is bit for bit what Pillow
//! gives. The metadata is read from the segments before the first scan.

use std::cell::RefCell;
use std::iter;

use turbojpeg::{Colorspace, DecompressHeader, Decompressor, PixelFormat, ScalingFactor};

use super::orientation::{find, upright, upright_size};
use super::{Format, Info, Orientation, Rgb8, Scale, check_size, div_255};
use crate::error::RowError;

/// Most scans of a progressive JPEG: each costs a pass over the whole image, and encoders write about ten.
const MAX_SCANS: u32 = 500;

/// libjpeg's warnings after which the picture is still whole; after all others parts of it are missing or invented.
const HARMLESS: [&str; 3] = [
    "extraneous bytes before marker",
    "Invalid SOS parameters for sequential JPEG",
    "Unknown Adobe color transform",
];

/// libjpeg's warning when it runs out of bytes.
const CUT_OFF: &str = "Premature end of JPEG file";

const END_OF_IMAGE: [u8; 2] = [0xff, 0xd9];

pub fn probe(bytes: &[u8]) -> Result<Info, RowError> {
    let header = with_decoder(|decoder| decoder.read_header(bytes))?;
    let (width, height) = size(&header)?;
    let (orientation, icc) = metadata(bytes);
    let (width, height) = upright_size(orientation, width, height);
    Ok(Info { width, height, format: Format::Jpeg, orientation, icc })
}

pub fn decode(bytes: &[u8], scale: Scale) -> Result<Rgb8, RowError> {
    let image = match decode_stored(bytes, scale) {
        // Where only the end marker is missing the picture is whole; where more is, libjpeg warns again.
        Err(RowError::Damaged(warning)) if warning.contains(CUT_OFF) && !bytes.ends_with(&END_OF_IMAGE) => {
            decode_stored(&[bytes, &END_OF_IMAGE].concat(), scale)?
        }
        other => other?,
    };
    upright(image, metadata(bytes).0)
}

/// The pixels in the order in which they are stored.
fn decode_stored(bytes: &[u8], scale: Scale) -> Result<Rgb8, RowError> {
    let header = with_decoder(|decoder| decoder.read_header(bytes))?;
    size(&header)?;
    let scale = if header.is_lossless { Scale::FULL } else { scale };
    let factor = ScalingFactor::new(scale.0.into(), 8);
    let scaled = header.scaled(factor);
    let (width, height) = size(&scaled)?;
    let format = match header.colorspace {
        Colorspace::CMYK | Colorspace::YCCK => PixelFormat::CMYK,
        _ => PixelFormat::RGB,
    };
    let pitch = scaled.width * format.size();
    let mut pixels = vec![0; pitch * scaled.height];
    let output = turbojpeg::Image {
        pixels: pixels.as_mut_slice(),
        width: scaled.width,
        pitch,
        height: scaled.height,
        format,
    };
    with_decoder(|decoder| {
        decoder.set_scaling_factor(factor)?;
        match decoder.decompress(bytes, output) {
            Err(turbojpeg::Error::TurboJpegError(warning))
                if HARMLESS.iter().any(|text| warning.contains(text)) =>
            {
                Ok(())
            }
            other => other,
        }
    })?;
    if format == PixelFormat::CMYK {
        pixels = pixels.as_chunks::<4>().0.iter().flat_map(cmyk_to_rgb).collect();
    }
    Ok(Rgb8 { width, height, pixels })
}

/// Runs one of libjpeg's calls on this thread's decoder, which is made once.
fn with_decoder<T>(
    call: impl FnOnce(&mut Decompressor) -> Result<T, turbojpeg::Error>,
) -> Result<T, RowError> {
    thread_local! {
        static DECODER: RefCell<Option<Decompressor>> = const { RefCell::new(None) };
    }
    DECODER
        .with_borrow_mut(|slot| match slot {
            Some(decoder) => call(decoder),
            None => {
                let mut decoder = Decompressor::new()?;
                decoder.set_scan_limit(MAX_SCANS)?;
                call(slot.insert(decoder))
            }
        })
        .map_err(|error| RowError::Damaged(error.to_string()))
}

fn size(header: &DecompressHeader) -> Result<(u32, u32), RowError> {
    let side = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let (width, height) = (side(header.width), side(header.height));
    check_size(width, height)?;
    Ok((width, height))
}

/// The orientation, and whether there is a colour profile.
fn metadata(bytes: &[u8]) -> (Orientation, bool) {
    const XMP: &[u8] = b"http://ns.adobe.com/xap/1.0/\0";
    let (mut exif, mut xmp, mut icc) = (None, None, false);
    for (marker, payload) in segments(bytes) {
        match marker {
            0xe1 if payload.starts_with(b"Exif\0\0") => exif = exif.or(Some(payload)),
            0xe1 if payload.starts_with(XMP) => xmp = xmp.or(Some(payload)),
            0xe2 => icc |= payload.starts_with(b"ICC_PROFILE\0"),
            _ => {}
        }
    }
    (find(exif, xmp), icc)
}

/// Markers and payloads up to the first scan, or to what is no segment.
fn segments(bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    const START_OF_SCAN: u8 = 0xda;
    let mut rest = bytes.get(2..).unwrap_or_default();
    iter::from_fn(move || {
        while let [0xff, 0xff, ..] = rest {
            rest = &rest[1..];
        }
        let &[0xff, marker, high, low, ..] = rest else { return None };
        let length = usize::from(u16::from_be_bytes([high, low]));
        let payload = rest.get(4..2 + length).filter(|_| marker != START_OF_SCAN)?;
        rest = &rest[2 + length..];
        Some((marker, payload))
    })
}

/// Ink as Adobe stores it, inverted (255 is none), to RGB, by Pillow's `cmyk2rgb` (`src/libImaging/Convert.c`).
fn cmyk_to_rgb(&[c, m, y, k]: &[u8; 4]) -> [u8; 3] {
    [c, m, y].map(|ink| k - div_255(u32::from(255 - ink) * u32::from(k)))
}
