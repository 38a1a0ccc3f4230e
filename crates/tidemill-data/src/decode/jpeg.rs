//! JPEG through libjpeg-turbo with the accurate DCT and smooth chroma upsampling, which is bit for
//! bit what Pillow returns. Metadata is read from the segments before the first scan.

use std::cell::RefCell;
use std::iter;
use std::ops::Range;

use crate::decode::color_profile::{ColorModel, convert_to_srgb};
use crate::decode::exif_orientation::{apply_orientation, find_orientation, upright_size};
use crate::decode::format::Format;
use crate::decode::image::{ImageInfo, Orientation, Rgb8, Strip, div_255};
use crate::decode::libjpeg_turbo::{Decoder, Header, Region};
use crate::decode::limits::check_size;
use crate::decode::rendering::IccHandling;
use crate::decode::scale::Scale;
use crate::error::RowError;

/// Most scans of a progressive JPEG. Each costs a pass over the whole image; encoders write about
/// ten.
const MAX_SCANS: u16 = 500;

/// Warnings of libjpeg after which the image is still complete. After all others, parts of it are
/// missing or made up.
const HARMLESS: [&str; 3] = [
    "extraneous bytes before marker",
    "Invalid SOS parameters for sequential JPEG",
    "Unknown Adobe color transform",
];

/// The warning of libjpeg when it runs out of bytes.
const PREMATURE_END: &str = "Premature end of JPEG file";

const END_OF_IMAGE: [u8; 2] = [0xff, 0xd9];

pub fn probe(bytes: &[u8]) -> Result<ImageInfo, RowError> {
    let header = with_decoder(bytes, |decoder| decoder.header(bytes))?;
    let (width, height) = check_dimensions(header.width, header.height)?;
    let (orientation, icc) = read_metadata(bytes);
    let (width, height) = upright_size(orientation, width, height);
    Ok(ImageInfo { width, height, format: Format::Jpeg, orientation, icc })
}

/// Decodes at least these `columns` of the upright image at a scale.
pub fn decode(
    bytes: &[u8],
    scale: Scale,
    columns: Option<Range<u32>>,
    icc: IccHandling,
) -> Result<Strip, RowError> {
    let orientation = read_metadata(bytes).0;
    // In an image that is stored rotated, columns may be stored as rows.
    let columns = columns.filter(|_| orientation == Orientation::NoTransforms);
    let strip = match decode_stored(bytes, scale, columns.clone(), icc) {
        // If only the end marker is missing, the image is complete. If more is missing, libjpeg
        // warns again when the marker is there, unless the image is of a kind that can lose whole
        // scans.
        Err(RowError::Damaged(warning))
            if warning.contains(PREMATURE_END) && !bytes.ends_with(&END_OF_IMAGE) =>
        {
            // Without this check the marker could become part of a truncated header.
            let header = with_decoder(bytes, |decoder| decoder.header(bytes))?;
            if header.may_miss_scans {
                return Err(RowError::Damaged(warning));
            }
            decode_stored(&[bytes, &END_OF_IMAGE].concat(), scale, columns, icc)?
        }
        other => other?,
    };
    if orientation == Orientation::NoTransforms {
        return Ok(strip);
    }
    Ok(Strip::from_image(apply_orientation(strip.image, orientation)?))
}

/// Decodes the pixels in the order in which they are stored.
fn decode_stored(
    bytes: &[u8],
    scale: Scale,
    columns: Option<Range<u32>>,
    icc: IccHandling,
) -> Result<Strip, RowError> {
    let (mut first_column, mut full_width, mut is_cmyk) = (0, 0, false);
    let pixels = with_decoder(bytes, |decoder| {
        decoder.decode(bytes, |header| {
            check_dimensions(header.width, header.height)?;
            let scale = if header.is_lossless { Scale::FULL } else { scale };
            full_width = scale.scale_side(header.width);
            is_cmyk = header.is_cmyk;
            let columns = columns.map_or(0..full_width, |columns| columns_to_decode(header, scale, columns));
            first_column = columns.start;
            Ok(Region { scale, columns })
        })
    })?;
    if let Some(warning) = pixels.warning.filter(|warning| !is_harmless(warning)) {
        return Err(warning);
    }
    let (width, height) = check_dimensions(pixels.width, pixels.height)?;
    let profile = if icc == IccHandling::Convert { read_profile(bytes) } else { None };
    let pixels = render(pixels.bytes, is_cmyk, profile.as_deref());
    Ok(Strip {
        image: Rgb8 { width, height, pixels },
        left: first_column as u32,
        full_width: full_width as u32,
    })
}

/// Stored pixels as RGB, by the profile if it can be used. Grey is stored as RGB.
fn render(mut pixels: Vec<u8>, is_cmyk: bool, profile: Option<&[u8]>) -> Vec<u8> {
    if let Some(profile) = profile {
        let converted = if is_cmyk {
            let inks: Vec<u8> = pixels.iter().map(|ink| 255 - ink).collect();
            convert_to_srgb(profile, ColorModel::Cmyk, &inks)
        } else {
            convert_to_srgb(profile, ColorModel::Rgb, &pixels).or_else(|| {
                let is_grey = |[r, g, b]: &[u8; 3]| r == g && g == b;
                let grey: Option<Vec<u8>> =
                    pixels.as_chunks().0.iter().map(|pixel| is_grey(pixel).then_some(pixel[0])).collect();
                convert_to_srgb(profile, ColorModel::Grey, &grey?)
            })
        };
        if let Some(converted) = converted {
            return converted;
        }
    }
    if is_cmyk {
        pixels = pixels.as_chunks::<4>().0.iter().flat_map(cmyk_to_rgb).collect();
    }
    pixels
}

fn is_harmless(warning: &RowError) -> bool {
    let text = warning.to_string();
    HARMLESS.iter().any(|harmless| text.contains(harmless))
}

/// The columns to decode so that the wanted ones equal those of the full image. Decoding starts at
/// the edge of an MCU. At both ends, chroma is smoothed without the neighbour that is left out, so
/// one more MCU is decoded there.
fn columns_to_decode(header: &Header, scale: Scale, wanted: Range<u32>) -> Range<usize> {
    let full_width = scale.scale_side(header.width);
    let Some(mcu_width) =
        header.mcu_width.filter(|_| !header.is_lossless).map(|mcu_width| scale.scale_side(mcu_width))
    else {
        return 0..full_width;
    };
    let start = (wanted.start as usize).saturating_sub(mcu_width) / mcu_width * mcu_width;
    start..(wanted.end as usize + mcu_width).min(full_width)
}

/// Runs a call on this thread's decoder. The decoder is replaced after an error, because an error
/// in a header leaves it in the middle of that header, and for data without a frame header, because
/// it would report the size of the previous image.
fn with_decoder<T>(
    bytes: &[u8],
    call: impl FnOnce(&mut Decoder) -> Result<T, RowError>,
) -> Result<T, RowError> {
    thread_local! {
        static DECODER: RefCell<Option<Decoder>> = const { RefCell::new(None) };
    }
    DECODER.with_borrow_mut(|slot| {
        let mut decoder = match slot.take().filter(|_| has_frame_header(bytes)) {
            Some(decoder) => decoder,
            None => Decoder::new(MAX_SCANS)?,
        };
        let result = call(&mut decoder)?;
        *slot = Some(decoder);
        Ok(result)
    })
}

/// True if there is a frame header (SOF) before the first scan.
fn has_frame_header(bytes: &[u8]) -> bool {
    segments(bytes).any(|(marker, _)| matches!(marker, 0xc0..=0xcf) && !matches!(marker, 0xc4 | 0xc8 | 0xcc))
}

fn check_dimensions(width: usize, height: usize) -> Result<(u32, u32), RowError> {
    let [width, height] = [width, height].map(|side| u32::try_from(side).unwrap_or(u32::MAX));
    check_size(width, height)?;
    Ok((width, height))
}

/// Reads the orientation, and whether there is a colour profile.
fn read_metadata(bytes: &[u8]) -> (Orientation, bool) {
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
    (find_orientation(exif, xmp), icc)
}

/// The colour profile: its parts in the order of their numbers.
fn read_profile(bytes: &[u8]) -> Option<Vec<u8>> {
    let parts = segments(bytes).filter(|(marker, _)| *marker == 0xe2);
    let parts = parts.filter_map(|(_, payload)| payload.strip_prefix(b"ICC_PROFILE\0"));
    let mut parts: Vec<(u8, &[u8])> =
        parts.filter_map(|part| Some((*part.first()?, part.get(2..)?))).collect();
    parts.sort_by_key(|(number, _)| *number);
    let profile: Vec<u8> = parts.into_iter().flat_map(|(_, part)| part).copied().collect();
    (!profile.is_empty()).then_some(profile)
}

/// Markers and payloads of the segments up to the first scan, or up to bytes that are not a
/// segment.
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

/// Converts CMYK to RGB by Pillow's `cmyk2rgb` (`src/libImaging/Convert.c`). Adobe stores ink
/// inverted: 255 is none.
fn cmyk_to_rgb(&[c, m, y, k]: &[u8; 4]) -> [u8; 3] {
    [c, m, y].map(|ink| k - div_255(u32::from(255 - ink) * u32::from(k)))
}
