//! AVIF images: AV1 frames in the containers of HEIF, decoded to the pixels that Pillow gives, which are
//! those of libavif with libyuv.
//!
//! * `container`, `items`, `sequence`: finding the image; `layer`: what was found
//! * `boxes`, `properties`, `metadata`: reading headers
//! * `av1`, `planes`: decoding samples; `error`: why that fails
//! * `rgb`, `float`, `alpha`: from samples to pixels

mod alpha;
mod av1;
mod boxes;
mod container;
mod error;
mod float;
mod items;
mod layer;
mod metadata;
mod planes;
mod properties;
mod rgb;
mod sequence;

use self::av1::Chroma;
pub use self::container::is_avif;
pub use self::error::AvifError;

use self::container::find_image;
use self::layer::{Image, Layer};
use self::planes::{LayerDecoder, Plane, Planes, Sample};
use self::properties::Cicp;

/// What the header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AvifInfo {
    /// Width in pixels of the stored image.
    pub width: u32,
    /// Height in pixels of the stored image.
    pub height: u32,
    /// Number of the transformation, as in EXIF, that makes the stored image upright.
    pub orientation: u8,
    /// True if there is a colour profile.
    pub icc: bool,
}

/// Decoded pixels in stored orientation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pixels {
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// 1 for grey, 3 for RGB, 4 for RGBA with colors that are not multiplied by alpha.
    pub channels: usize,
    /// Row by row, interleaved.
    pub data: Vec<u8>,
}

/// Reads the header; no pixel is decoded.
///
/// # Errors
/// If the bytes are not AVIF, the header is damaged, or the image is too large.
pub fn probe(bytes: &[u8]) -> Result<AvifInfo, AvifError> {
    let image = find_image(bytes)?;
    let Layer { width, height, .. } = image.color;
    Ok(AvifInfo { width, height, orientation: metadata::orientation(&image), icc: image.icc.is_some() })
}

/// The colour profile.
pub fn icc_profile(bytes: &[u8]) -> Option<&[u8]> {
    find_image(bytes).ok()?.icc
}

/// Decodes the image or, of a sequence, the first frame.
///
/// # Errors
/// As [`probe`], and if the coded image is damaged or needs something that is not supported.
pub fn decode(bytes: &[u8]) -> Result<Pixels, AvifError> {
    let image = find_image(bytes)?;
    let decoder = LayerDecoder::new(&image.color)?;
    let cicp = image.cicp.map_or_else(|| decoder.first.cicp(), Ok)?;
    let (channels, data) = match decoder.first.depth() {
        8 => to_pixels(&decode_planes::<u8>(&image, decoder)?, cicp, image.is_premultiplied)?,
        _ => to_pixels(&decode_planes::<u16>(&image, decoder)?, cicp, image.is_premultiplied)?,
    };
    Ok(Pixels { width: image.color.width, height: image.color.height, channels, data })
}

fn decode_planes<T: Sample>(image: &Image, color: LayerDecoder) -> Result<Planes<T>, AvifError> {
    let (depth, chroma_layout) = (color.first.depth(), color.first.chroma());
    let count = if chroma_layout == Chroma::None { 1 } else { 3 };
    let mut planes = color.decode(count)?.into_iter();
    let mut next = || planes.next().unwrap_or(Plane { width: 0, height: 0, samples: Vec::new() });
    let (luma, chroma) = (next(), [next(), next()]);
    let alpha = image.alpha.as_ref().map(|layer| decode_alpha(layer, &image.color, depth)).transpose()?;
    Ok(Planes { depth, chroma_layout, luma, chroma, alpha })
}

fn decode_alpha<T: Sample>(layer: &Layer, color: &Layer, depth: u32) -> Result<Plane<T>, AvifError> {
    let decoder = LayerDecoder::new(layer)?;
    if (layer.width, layer.height, decoder.first.depth()) != (color.width, color.height, depth) {
        return Err(AvifError::damaged("the alpha plane does not match the colors"));
    }
    let is_full_range = decoder.first.is_full_range();
    let mut planes = decoder.decode(1)?;
    let mut alpha = planes.pop().ok_or_else(|| AvifError::damaged("no alpha plane"))?;
    if !is_full_range {
        alpha::stretch(&mut alpha, depth);
    }
    Ok(alpha)
}

/// Channels and bytes of the pixels.
fn to_pixels<T: Sample>(
    planes: &Planes<T>,
    cicp: Cicp,
    is_premultiplied: bool,
) -> Result<(usize, Vec<u8>), AvifError> {
    let matrix = float::matrix(cicp, planes.chroma_layout);
    let matrix = matrix.ok_or_else(|| AvifError::Unsupported(format!("color codes {cicp:?}")))?;
    if let Some(alpha) = &planes.alpha {
        return Ok((4, to_rgba(planes, alpha, cicp, matrix, is_premultiplied)));
    }
    if planes.chroma_layout == Chroma::None {
        return Ok((1, float::to_grey(planes, cicp.full_range)));
    }
    let pixels = match rgb::coefficients(cicp) {
        // libyuv has no functions from more than 8 bits to RGB without alpha.
        Some(coefficients) if planes.depth > 8 => rgb::to_rgb::<_, 3>(&planes.narrow(), coefficients, false),
        Some(coefficients) => rgb::to_rgb::<_, 3>(planes, coefficients, false),
        None => float::to_rgb::<_, 3>(planes, matrix, cicp.full_range, false),
    };
    Ok((3, pixels))
}

fn to_rgba<T: Sample>(
    planes: &Planes<T>,
    alpha: &Plane<T>,
    cicp: Cicp,
    matrix: float::Matrix,
    is_premultiplied: bool,
) -> Vec<u8> {
    let (depth, layout) = (planes.depth, planes.chroma_layout);
    // Without chroma, the identity counts as BT.601.
    let is_grey_identity = layout == Chroma::None && cicp.matrix == 0;
    let coefficients = rgb::coefficients(if is_grey_identity { Cicp { matrix: 6, ..cicp } } else { cicp });
    // libyuv has a function for 12 bits that does not interpolate, and otherwise takes the upper 8.
    let is_nearest = depth == 12 && layout == Chroma::Quarter;
    let is_narrow = depth > 8 && !is_nearest && (depth == 12 || layout == Chroma::None);
    let is_slow = match matrix {
        float::Matrix::Identity => depth > 8 || !cicp.full_range || layout == Chroma::None,
        float::Matrix::YCgCo => true,
        float::Matrix::Shares { .. } => matches!(layout, Chroma::Quarter | Chroma::Half),
    };
    // libavif's slow function divides by alpha itself.
    let divides_slowly = coefficients.is_none() && is_slow;
    let mut pixels = match coefficients {
        Some(coefficients) if is_narrow => rgb::to_rgb::<_, 4>(&planes.narrow(), coefficients, false),
        Some(coefficients) => rgb::to_rgb::<_, 4>(planes, coefficients, is_nearest),
        None => float::to_rgb::<_, 4>(planes, matrix, cicp.full_range, is_premultiplied && divides_slowly),
    };
    let rounds = coefficients.is_none() || is_nearest || layout == Chroma::None;
    alpha::fill(alpha, depth, rounds, &mut pixels);
    if is_premultiplied && !divides_slowly {
        rgb::unpremultiply(&mut pixels);
    }
    pixels
}
