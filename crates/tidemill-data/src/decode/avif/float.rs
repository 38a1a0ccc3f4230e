//! From YUV to grey or RGB in floating point, as libavif does it where libyuv has no function. The order
//! of the operations is libavif's, since it decides about rounding.

use crate::decode::avif::av1::Chroma;
use crate::decode::avif::planes::{Plane, Planes, Sample};
use crate::decode::avif::properties::Cicp;

/// What luma and chroma stand for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Matrix {
    /// Green, blue and red.
    Identity,
    /// Luma, and differences to green and to orange.
    YCgCo,
    /// Luma with these shares of red and blue, and differences to blue and to red.
    Shares { red: f32, blue: f32 },
}

/// What a matrix code stands for; `None` if libavif does not convert it from this chroma and range.
pub fn matrix(cicp: Cicp, chroma: Chroma) -> Option<Matrix> {
    Some(match (cicp.matrix, cicp.primaries) {
        (0, _) if matches!(chroma, Chroma::None | Chroma::Full) => Matrix::Identity,
        (1, _) => Matrix::Shares { red: 0.2126, blue: 0.0722 },
        (2 | 5 | 6 | 15, _) => Matrix::Shares { red: 0.299, blue: 0.114 },
        (4, _) => Matrix::Shares { red: 0.30, blue: 0.11 },
        (7, _) => Matrix::Shares { red: 0.212, blue: 0.087 },
        (8, _) if cicp.full_range => Matrix::YCgCo,
        (9, _) => Matrix::Shares { red: 0.2627, blue: 0.0593 },
        (12, primaries) => shares_of(chromaticities(primaries)),
        _ => return None,
    })
}

/// The shares of luma that follow from the primaries (equations 32 to 37 of H.273).
fn shares_of([r, g, b, w]: [[f32; 2]; 4]) -> Matrix {
    let z = |[x, y]: [f32; 2]| 1.0 - (x + y);
    let [[rx, ry], [gx, gy], [bx, by], [wx, wy]] = [r, g, b, w];
    let [rz, gz, bz, wz] = [r, g, b, w].map(z);
    let whole = wy * (rx * (gy * bz - by * gz) + gx * (by * rz - ry * bz) + bx * (ry * gz - gy * rz));
    let red = ry * (wx * (gy * bz - by * gz) + wy * (bx * gz - gx * bz) + wz * (gx * by - bx * gy));
    let blue = by * (wx * (ry * gz - gy * rz) + wy * (gx * rz - rx * gz) + wz * (rx * gy - gx * ry));
    Matrix::Shares { red: red / whole, blue: blue / whole }
}

/// Red, green, blue and white of primaries. Those for which libyuv has coefficients are not here; others
/// count as BT.709.
fn chromaticities(primaries: u16) -> [[f32; 2]; 4] {
    const D65: [f32; 2] = [0.3127, 0.329];
    match primaries {
        4 => [[0.67, 0.33], [0.21, 0.71], [0.14, 0.08], [0.310, 0.316]],
        7 => [[0.630, 0.340], [0.310, 0.595], [0.155, 0.070], D65],
        8 => [[0.681, 0.319], [0.243, 0.692], [0.145, 0.049], [0.310, 0.316]],
        10 => [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.3333, 0.3333]],
        11 => [[0.680, 0.320], [0.265, 0.690], [0.150, 0.060], [0.314, 0.351]],
        12 => [[0.680, 0.320], [0.265, 0.690], [0.150, 0.060], D65],
        22 => [[0.630, 0.340], [0.295, 0.605], [0.155, 0.077], D65],
        _ => [[0.64, 0.33], [0.3, 0.6], [0.15, 0.06], D65],
    }
}

/// From samples to numbers: luma from 0 to 1, chroma around 0.
struct Tables {
    luma: Vec<f32>,
    chroma: Vec<f32>,
}

impl Tables {
    fn new(depth: u32, full_range: bool, is_identity: bool) -> Self {
        let most = (1_u32 << depth) - 1;
        let scaled = |number: u32| (number << (depth - 8)) as f32;
        let (bias, range) = if full_range { (0.0, most as f32) } else { (scaled(16), scaled(219)) };
        let table = |bias: f32, range: f32| (0..=most).map(|sample| (sample as f32 - bias) / range).collect();
        let luma: Vec<f32> = table(bias, range);
        let middle = (1_u32 << (depth - 1)) as f32;
        let chroma = match (is_identity, full_range) {
            (true, _) => luma.clone(),
            (false, true) => table(middle, most as f32),
            (false, false) => table(middle, scaled(224)),
        };
        Self { luma, chroma }
    }
}

/// Luma as grey.
pub fn to_grey<T: Sample>(planes: &Planes<T>, full_range: bool) -> Vec<u8> {
    let tables = Tables::new(planes.depth, full_range, false);
    let greys: Vec<u8> = tables.luma.iter().map(|luma| to_byte(*luma)).collect();
    planes.luma.samples.iter().map(|&sample| look_up(&greys, sample)).collect()
}

/// Converts to interleaved RGB, or to RGBA with an alpha of 255 if there are four `CHANNELS`. With
/// `unpremultiply`, colors are divided by alpha.
pub fn to_rgb<T: Sample, const CHANNELS: usize>(
    planes: &Planes<T>,
    matrix: Matrix,
    full_range: bool,
    unpremultiply: bool,
) -> Vec<u8> {
    let tables = Tables::new(planes.depth, full_range, matrix == Matrix::Identity);
    let most = ((1_u32 << planes.depth) - 1) as f32;
    let Plane { width, height, .. } = planes.luma;
    let mut pixels = vec![255; width * height * CHANNELS];
    for (y, row) in pixels.chunks_exact_mut(width * CHANNELS).enumerate() {
        let alpha = planes.alpha.as_ref().filter(|_| unpremultiply).map(|alpha| alpha.row(y));
        let (row, _) = row.as_chunks_mut::<CHANNELS>();
        for (x, (pixel, &luma)) in row.iter_mut().zip(planes.luma.row(y)).enumerate() {
            let luma = look_up(&tables.luma, luma);
            let [u, v] = planes.chroma.each_ref().map(|plane| {
                interpolate(
                    plane,
                    &tables.chroma,
                    planes.chroma_layout,
                    (planes.luma.width, planes.luma.height),
                    (x, y),
                )
            });
            let grey = planes.chroma_layout == Chroma::None;
            let mut colors = if grey { [luma; 3] } else { combine(matrix, luma, u, v) };
            colors = colors.map(|color| color.clamp(0.0, 1.0));
            if let Some(&alpha) = alpha.and_then(|alpha| alpha.get(x)) {
                let alpha = f32::from(alpha.into()) / most;
                colors = colors.map(|color| divide(color, alpha));
            }
            for (value, color) in pixel.iter_mut().zip(colors) {
                *value = to_byte(color);
            }
        }
    }
    pixels
}

/// Chroma at a pixel. Subsampled chroma is interpolated; samples beyond the edge are like the edge.
fn interpolate<T: Sample>(
    plane: &Plane<T>,
    table: &[f32],
    layout: Chroma,
    (width, height): (usize, usize),
    (x, y): (usize, usize),
) -> f32 {
    let at = |x: usize, y: usize| plane.row(y).get(x).map_or(0.0, |&sample| look_up(table, sample));
    let (shift_x, shift_y) = layout.shifts(1);
    if shift_x == 0 {
        return at(x, y);
    }
    let (far_x, far_y) = (neighbor(x, width), if shift_y == 0 { y } else { neighbor(y, height) });
    let (x, y) = (x >> shift_x, y >> shift_y);
    at(x, y) * (9.0 / 16.0)
        + at(far_x, y) * (3.0 / 16.0)
        + at(x, far_y) * (3.0 / 16.0)
        + at(far_x, far_y) * (1.0 / 16.0)
}

/// The second nearest of the chroma samples along a side of so many pixels.
fn neighbor(at: usize, side: usize) -> usize {
    let nearest = at / 2;
    match at % 2 {
        0 => nearest.saturating_sub(1),
        _ if at + 1 == side => nearest,
        _ => nearest + 1,
    }
}

/// Red, green and blue.
fn combine(matrix: Matrix, luma: f32, u: f32, v: f32) -> [f32; 3] {
    match matrix {
        Matrix::Identity => [v, luma, u],
        Matrix::YCgCo => {
            let rest = luma - u;
            [rest + v, luma + u, rest - v]
        }
        Matrix::Shares { red, blue } => {
            let green = 1.0 - red - blue;
            [
                luma + (2.0 * (1.0 - red)) * v,
                luma - ((2.0 * ((red * (1.0 - red) * v) + (blue * (1.0 - blue) * u))) / green),
                luma + (2.0 * (1.0 - blue)) * u,
            ]
        }
    }
}

fn divide(color: f32, alpha: f32) -> f32 {
    if alpha == 0.0 {
        0.0
    } else if alpha < 1.0 {
        (color / alpha).min(1.0)
    } else {
        color
    }
}

/// Entry of a table for a sample.
fn look_up<T: Sample, V: Copy + Default>(table: &[V], sample: T) -> V {
    let sample: u16 = sample.into();
    table.get(usize::from(sample)).or(table.last()).copied().unwrap_or_default()
}

fn to_byte(number: f32) -> u8 {
    (0.5 + number.clamp(0.0, 1.0) * 255.0) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planes(layout: Chroma, samples: [Vec<u8>; 3], width: usize) -> Planes<u8> {
        let [luma, u, v] = samples.map(|samples| Plane { width, height: samples.len() / width, samples });
        Planes { depth: 8, chroma_layout: layout, luma, chroma: [u, v], alpha: None }
    }

    #[test]
    fn luma_of_either_range_becomes_grey() {
        let planes = planes(Chroma::None, [vec![0, 16, 126, 235, 255], vec![], vec![]], 5);
        assert_eq!(to_grey(&planes, true), [0, 16, 126, 235, 255]);
        assert_eq!(to_grey(&planes, false), [0, 0, 128, 255, 255]);
    }

    #[test]
    fn matrices_are_undone() {
        let planes = planes(Chroma::Full, [vec![100], vec![138], vec![98]], 1);
        let rgb = |matrix| to_rgb::<_, 3>(&planes, matrix, true, false);
        assert_eq!(rgb(Matrix::Identity), [98, 100, 138]);
        assert_eq!(rgb(Matrix::YCgCo), [60, 110, 120]);
        assert_eq!(rgb(Matrix::Shares { red: 0.3, blue: 0.11 }), [58, 118, 118]);
    }

    #[test]
    fn colors_are_divided_by_alpha() {
        assert_eq!(
            [divide(0.2, 0.0), divide(0.2, 0.5), divide(0.6, 0.5), divide(0.6, 1.0)],
            [0.0, 0.4, 1.0, 0.6]
        );
    }
}
