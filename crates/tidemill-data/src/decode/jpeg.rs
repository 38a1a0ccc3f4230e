//! JPEG through libjpeg-turbo with the accurate DCT and smooth chroma upsampling, which is bit for bit what Pillow
//! gives. The metadata is read from the segments before the first scan.

use std::cell::RefCell;
use std::iter;
use std::ops::Range;

use crate::decode::exif_orientation::{find, upright, upright_size};
use crate::decode::format::Format;
use crate::decode::image::{Info, Orientation, Rgb8, Strip, check_size, div_255};
use crate::decode::libjpeg_turbo::{Decoder, Header, View};
use crate::decode::scale::Scale;
use crate::error::RowError;

/// Most scans of a progressive JPEG: each costs a pass over the whole image, and encoders write about ten.
const MAX_SCANS: u16 = 500;

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
    let header = with_decoder(bytes, |decoder| decoder.header(bytes))?;
    let (width, height) = size(header.width, header.height)?;
    let (orientation, icc) = metadata(bytes);
    let (width, height) = upright_size(orientation, width, height);
    Ok(Info { width, height, format: Format::Jpeg, orientation, icc })
}

/// Decodes at least the `columns` of the upright image at a scale.
pub fn decode(bytes: &[u8], scale: Scale, columns: Option<Range<u32>>) -> Result<Strip, RowError> {
    let orientation = metadata(bytes).0;
    // Stored another way, columns may be rows.
    let columns = columns.filter(|_| orientation == Orientation::NoTransforms);
    let strip = match decode_stored(bytes, scale, columns.clone()) {
        // Where only the end marker is missing the picture is whole; where more is, libjpeg warns again, unless the
        // image is of a kind of which whole scans can be missing.
        Err(RowError::Damaged(warning)) if warning.contains(CUT_OFF) && !bytes.ends_with(&END_OF_IMAGE) => {
            // The marker must not become part of a header that was cut off.
            let header = with_decoder(bytes, |decoder| decoder.header(bytes))?;
            if header.open_ended {
                return Err(RowError::Damaged(warning));
            }
            decode_stored(&[bytes, &END_OF_IMAGE].concat(), scale, columns)?
        }
        other => other?,
    };
    if orientation == Orientation::NoTransforms {
        return Ok(strip);
    }
    Ok(Strip::whole(upright(strip.image, orientation)?))
}

/// The pixels in the order in which they are stored.
fn decode_stored(bytes: &[u8], scale: Scale, columns: Option<Range<u32>>) -> Result<Strip, RowError> {
    let (mut first, mut whole, mut cmyk) = (0, 0, false);
    let pixels = with_decoder(bytes, |decoder| {
        decoder.decode(bytes, |header| {
            size(header.width, header.height)?;
            let scale = if header.lossless { Scale::FULL } else { scale };
            whole = scale.of(header.width);
            cmyk = header.cmyk;
            let columns = columns.map_or(0..whole, |columns| coded(header, scale, columns));
            first = columns.start;
            Ok(View { scale, columns })
        })
    })?;
    if let Some(warning) = pixels.warning.filter(|warning| !is_harmless(warning)) {
        return Err(warning);
    }
    let (width, height) = size(pixels.width, pixels.height)?;
    let mut pixels = pixels.bytes;
    if cmyk {
        pixels = pixels.as_chunks::<4>().0.iter().flat_map(cmyk_to_rgb).collect();
    }
    Ok(Strip { image: Rgb8 { width, height, pixels }, left: first as u32, whole: whole as u32 })
}

fn is_harmless(warning: &RowError) -> bool {
    let text = warning.to_string();
    HARMLESS.iter().any(|harmless| text.contains(harmless))
}

/// The columns to decode, for those wanted to be the same as in the whole image. Decoding starts at the edge of a
/// unit, and where it starts and ends, chroma is smoothed without the neighbour that is left out.
fn coded(header: &Header, scale: Scale, wanted: Range<u32>) -> Range<usize> {
    let whole = scale.of(header.width);
    let Some(unit) = header.unit.filter(|_| !header.lossless).map(|unit| scale.of(unit)) else {
        return 0..whole;
    };
    let start = (wanted.start as usize).saturating_sub(unit) / unit * unit;
    start..(wanted.end as usize + unit).min(whole)
}

/// Runs one of libjpeg's calls on this thread's decoder, which is made once. It is made anew after an error, for one in a
/// header leaves it in the middle of that header; and for data without a frame, for which it would go on to tell the
/// size of the image before.
fn with_decoder<T>(
    bytes: &[u8],
    call: impl FnOnce(&mut Decoder) -> Result<T, RowError>,
) -> Result<T, RowError> {
    thread_local! {
        static DECODER: RefCell<Option<Decoder>> = const { RefCell::new(None) };
    }
    DECODER.with_borrow_mut(|slot| {
        let mut decoder = match slot.take().filter(|_| has_frame(bytes)) {
            Some(decoder) => decoder,
            None => Decoder::new(MAX_SCANS)?,
        };
        let result = call(&mut decoder)?;
        *slot = Some(decoder);
        Ok(result)
    })
}

/// Whether a frame's header (SOF) is found where it should be.
fn has_frame(bytes: &[u8]) -> bool {
    segments(bytes).any(|(marker, _)| matches!(marker, 0xc0..=0xcf) && !matches!(marker, 0xc4 | 0xc8 | 0xcc))
}

fn size(width: usize, height: usize) -> Result<(u32, u32), RowError> {
    let [width, height] = [width, height].map(|side| u32::try_from(side).unwrap_or(u32::MAX));
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
