//! From YUV to RGB in fixed point, as libyuv does it: luma has 16 bits, chroma 8, coefficients 6 after
//! the point. libavif uses this for the common color codes.

use crate::decode::avif::av1::Chroma;
use crate::decode::avif::planes::{Plane, Planes, Sample};
use crate::decode::avif::properties::Cicp;

/// Factors of a conversion, times 64.
#[derive(Debug, Clone, Copy)]
pub struct Coefficients {
    /// Also times 65536 / 257.
    luma: u16,
    /// Added to luma. The half of 64 is for rounding.
    bias: i16,
    blue_u: i16,
    green_u: i16,
    green_v: i16,
    red_v: i16,
}

/// The coefficients; `None` if libyuv has none.
pub fn coefficients(cicp: Cicp) -> Option<Coefficients> {
    const BT601: u16 = 6;
    const BT709: u16 = 1;
    const BT2020: u16 = 9;
    let matrix = match (cicp.matrix, cicp.primaries) {
        // Unspecified counts as BT.601.
        (2 | 5 | 6, _) | (12, 5 | 6) => BT601,
        (1, _) | (12, 1 | 2) => BT709,
        (9, _) | (12, 9) => BT2020,
        _ => return None,
    };
    let (luma, bias) = match (cicp.full_range, matrix) {
        (true, _) => (16320, 32),
        (false, BT2020) => (19003, -1160),
        (false, _) => (18997, -1160),
    };
    // In limited range, the factor of blue is more than 128, but libyuv has 8 bits for it.
    let (blue_u, green_u, green_v, red_v) = match (cicp.full_range, matrix) {
        (true, BT601) => (113, 22, 46, 90),
        (true, BT709) => (119, 12, 30, 101),
        (true, _) => (120, 11, 37, 94),
        (false, BT601) => (128, 25, 52, 102),
        (false, BT709) => (128, 14, 34, 115),
        (false, _) => (128, 12, 42, 107),
    };
    Some(Coefficients { luma, bias, blue_u, green_u, green_v, red_v })
}

/// Pixels that are converted at a time, so that the compiler can use vector instructions.
const LANES: usize = 32;

/// Converts to interleaved RGB, or to RGBA with an alpha of 255 if there are four `CHANNELS`.
/// With `nearest`, subsampled chroma is repeated instead of interpolated.
pub fn to_rgb<T: Sample, const CHANNELS: usize>(
    planes: &Planes<T>,
    coefficients: Coefficients,
    nearest: bool,
) -> Vec<u8> {
    let Plane { width, height, .. } = planes.luma;
    let mut pixels = vec![255; width * height * CHANNELS];
    // Rows are filled up to whole groups of lanes. Without chroma, colors are grey.
    let lanes = width.next_multiple_of(LANES);
    let mut luma = vec![0; lanes];
    let mut chroma = [vec![128; lanes], vec![128; lanes]];
    let mut blended = Vec::with_capacity(width);
    for (y, row) in pixels.chunks_exact_mut(width * CHANNELS).enumerate() {
        widen(planes.luma.row(y), planes.depth, &mut luma);
        for (plane, samples) in planes.chroma.iter().zip(&mut chroma) {
            let samples = &mut samples[..width];
            match planes.chroma_layout {
                Chroma::None => {}
                _ if nearest => repeat(plane, planes.chroma_layout, planes.depth, y, samples),
                layout => upsample(plane, layout, planes.depth, y, &mut blended, samples),
            }
        }
        convert_row::<CHANNELS>(coefficients, &luma, &chroma, row);
    }
    pixels
}

/// Luma of 16 bits.
fn widen<T: Sample>(row: &[T], depth: u32, luma: &mut [u16]) {
    // The upper bits of a sample come again below it, so that the most becomes the most.
    let (up, down) = (16 - depth, 2 * depth - 16);
    for (luma, &sample) in luma.iter_mut().zip(row) {
        let sample: u16 = sample.into();
        *luma = sample << up | sample >> down;
    }
}

/// Row `y` of chroma in 8 bits, with each sample repeated.
fn repeat<T: Sample>(plane: &Plane<T>, layout: Chroma, depth: u32, y: usize, samples: &mut [u8]) {
    let (shift_x, shift_y) = layout.shifts(1);
    let row = plane.row(y >> shift_y);
    for (pair, &sample) in samples.chunks_mut(1 << shift_x).zip(row) {
        pair.fill((sample.into() >> (depth - 8)) as u8);
    }
}

/// Row `y` of chroma in 8 bits. Subsampled chroma is interpolated: samples lie between pixels, so that a
/// pixel is three times as near to one sample as to the other. `blended` is for reuse.
fn upsample<T: Sample>(
    plane: &Plane<T>,
    layout: Chroma,
    depth: u32,
    y: usize,
    blended: &mut Vec<u16>,
    samples: &mut [u8],
) {
    let (shift_x, shift_y) = layout.shifts(1);
    let narrow = depth - 8;
    if shift_x == 0 {
        for (narrowed, &sample) in samples.iter_mut().zip(plane.row(y)) {
            *narrowed = (sample.into() >> narrow) as u8;
        }
        return;
    }
    let near = y >> shift_y;
    // The other row is above for even pixels, below for odd ones. Rows beyond the edge are like the edge.
    let far = match (shift_y, y % 2) {
        (0, _) => near,
        (_, 0) => near.saturating_sub(1),
        _ => (near + 1).min(plane.height - 1),
    };
    blended.clear();
    let columns = plane.row(near).iter().zip(plane.row(far));
    blended.extend(columns.map(|(&near, &far)| 3 * near.into() + far.into()));
    interpolate_row(blended, narrow, samples);
}

/// Interpolates between samples that are times 4.
fn interpolate_row(blended: &[u16], narrow: u32, samples: &mut [u8]) {
    let (Some(&first), Some(&last)) = (blended.first(), blended.last()) else { return };
    let edge = |sample: u16| ((sample + 2) >> 2 >> narrow) as u8;
    let between = |near: u16, far: u16| ((3 * near + far + 8) >> 4 >> narrow) as u8;
    if let Some((left, others)) = samples.split_first_mut() {
        *left = edge(first);
        let (pairs, _) = others.as_chunks_mut::<2>();
        let (lefts, rights) = (blended.iter(), blended.iter().skip(1));
        for (pair, (&left, &right)) in pairs.iter_mut().zip(lefts.zip(rights)) {
            *pair = [between(left, right), between(right, left)];
        }
    }
    if let Some(right) = samples.last_mut() {
        *right = edge(last);
    }
}

/// Converts a row that is filled up to whole groups of lanes.
fn convert_row<const CHANNELS: usize>(
    coefficients: Coefficients,
    luma: &[u16],
    chroma: &[Vec<u8>; 2],
    pixels: &mut [u8],
) {
    let (luma, _) = luma.as_chunks::<LANES>();
    let [(u, _), (v, _)] = chroma.each_ref().map(|plane| plane.as_chunks::<LANES>());
    let groups = pixels.chunks_mut(LANES * CHANNELS);
    for (group, ((luma, u), v)) in groups.zip(luma.iter().zip(u).zip(v)) {
        let colors = convert_lanes(coefficients, luma, u, v);
        let (group, _) = group.as_chunks_mut::<CHANNELS>();
        for (lane, pixel) in group.iter_mut().enumerate() {
            for (value, color) in pixel.iter_mut().zip(&colors) {
                *value = color[lane];
            }
        }
    }
}

/// Red, green and blue of some pixels. Sums that exceed 16 bits are far out of range for a color and are
/// clamped to 16 bits.
#[inline]
fn convert_lanes(
    coefficients: Coefficients,
    luma: &[u16; LANES],
    u: &[u8; LANES],
    v: &[u8; LANES],
) -> [[u8; LANES]; 3] {
    let Coefficients { luma: factor, bias, blue_u, green_u, green_v, red_v } = coefficients;
    let mut colors = [[0; LANES]; 3];
    let to_byte = |value: i16| (value >> 6).clamp(0, 255) as u8;
    for lane in 0..LANES {
        let luma = ((u32::from(luma[lane]) * u32::from(factor)) >> 16) as i16 + bias;
        let (u, v) = (i16::from(u[lane]) - 128, i16::from(v[lane]) - 128);
        colors[0][lane] = to_byte(luma.saturating_add(v * red_v));
        colors[1][lane] = to_byte(luma.saturating_sub(u * green_u + v * green_v));
        colors[2][lane] = to_byte(luma.saturating_add(u * blue_u));
    }
    colors
}

/// Divides the colors of RGBA pixels by alpha.
pub fn unpremultiply(pixels: &mut [u8]) {
    let (pixels, _) = pixels.as_chunks_mut::<4>();
    for [red, green, blue, alpha] in pixels {
        // 1 / alpha with 16 bits after the point, of which 1 / 1 has one too many. Full alpha must not
        // change the color.
        let inverse = match u32::from(*alpha) {
            0 => 0,
            1 => 0xffff,
            255 => 0x100,
            alpha => 0x10000 / alpha,
        };
        for color in [red, green, blue] {
            let divided = (u32::from(*color) * 257 * inverse) >> 16;
            // libyuv takes what exceeds 15 bits for negative.
            *color = if divided > 0x7fff { 0 } else { divided.min(255) as u8 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chroma_is_interpolated_between_four_samples() {
        let plane = Plane { width: 2, height: 2, samples: vec![0_u8, 80, 160, 240] };
        let rows = |layout, depth, count| -> Vec<Vec<u8>> {
            let row = |y| {
                let mut samples = [0; 4];
                upsample(&plane, layout, depth, y, &mut Vec::new(), &mut samples);
                samples.to_vec()
            };
            (0..count).map(row).collect()
        };
        assert_eq!(
            rows(Chroma::Quarter, 8, 4),
            [[0, 20, 60, 80], [40, 60, 100, 120], [120, 140, 180, 200], [160, 180, 220, 240]]
        );
        assert_eq!(rows(Chroma::Half, 8, 2), [[0, 20, 60, 80], [160, 180, 220, 240]]);
    }

    #[test]
    fn an_odd_side_ends_with_the_last_sample() {
        let mut samples = [0; 3];
        interpolate_row(&[0, 400], 0, &mut samples);
        assert_eq!(samples, [0, 25, 100]);
        let mut sample = [0];
        interpolate_row(&[400], 0, &mut sample);
        assert_eq!(sample, [100]);
    }

    #[test]
    fn the_range_of_luma_becomes_black_to_white() {
        let grey = |full_range, depth, sample: u16| {
            let plane = |samples: Vec<u16>| Plane { width: samples.len(), height: 1, samples };
            let planes = Planes {
                depth,
                chroma_layout: Chroma::None,
                luma: plane(vec![sample]),
                chroma: [plane(vec![]), plane(vec![])],
                alpha: None,
            };
            let cicp = Cicp { primaries: 1, matrix: 1, full_range };
            to_rgb::<_, 3>(&planes, coefficients(cicp).unwrap(), false)
        };
        assert_eq!(
            [grey(true, 8, 0), grey(true, 8, 255), grey(true, 12, 4095)].concat(),
            [0, 0, 0, 255, 255, 255, 255, 255, 255]
        );
        assert_eq!(
            [grey(false, 8, 16), grey(false, 8, 235), grey(false, 10, 64)].concat(),
            [0, 0, 0, 255, 255, 255, 0, 0, 0]
        );
    }

    #[test]
    fn colors_are_divided_by_alpha() {
        let mut pixels = [50, 100, 200, 128, 9, 9, 9, 0, 139, 8, 254, 255, 127, 128, 255, 1];
        unpremultiply(&mut pixels);
        assert_eq!(pixels, [100, 200, 255, 128, 0, 0, 0, 0, 139, 8, 254, 255, 255, 0, 0, 1]);
    }
}
