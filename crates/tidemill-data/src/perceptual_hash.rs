//! Perceptual hashes (pHash), by which near duplicates are found. Each of the 64 bits says whether
//! a low frequency of the 32 x 32 grey image is above the median. Resizing and compression change
//! few bits; unrelated images differ in about half of them.

use std::f64::consts::PI;
use std::sync::LazyLock;

use crate::decode::{Rgb8, Strip};
use crate::error::RowError;
use crate::resize::{Rect, Resample, resize};

/// Side of the grey image in pixels.
const SIDE: usize = 32;

/// Number of frequencies on each axis.
const FREQUENCIES: usize = 8;

/// Smaller coefficients are rounding errors: a flat image has no frequencies above the median.
const NOISE: f64 = 1e-6;

/// Computes the hash that `imagehash.phash(image)` of the Python package returns (hash_size 8,
/// highfreq_factor 4): grey as Pillow's "L", Lanczos to 32 x 32 with byte rounding, DCT-II along
/// both axes. Bit by bit, row by row and most significant bit first: whether each of the 8 x 8
/// lowest coefficients is greater than their median.
///
/// # Errors
/// If the image's buffer has the wrong size.
pub fn phash(image: &Rgb8) -> Result<u64, RowError> {
    let grey = image.pixels.as_chunks::<3>().0.iter().flat_map(|pixel| [luma(*pixel); 3]);
    let grey = Rgb8 { pixels: grey.collect(), ..*image };
    let whole = Rect { x: 0, y: 0, width: image.width, height: image.height };
    let small = resize(&Strip::from_image(grey), whole, (SIDE as u32, SIDE as u32), Resample::Lanczos)?;
    let coefficients = low_frequencies(small.pixels.as_chunks::<3>().0);
    let mut sorted = coefficients;
    sorted.sort_unstable_by(f64::total_cmp);
    let median =
        f64::midpoint(sorted[FREQUENCIES * FREQUENCIES / 2 - 1], sorted[FREQUENCIES * FREQUENCIES / 2]);
    Ok(coefficients.iter().fold(0, |hash, value| hash << 1 | u64::from(*value > median)))
}

/// Pillow's `L` (`src/libImaging/Convert.c`): ITU-R 601-2 in 16-bit fixed point.
fn luma([r, g, b]: [u8; 3]) -> u8 {
    let sum = 19_595 * u32::from(r) + 38_470 * u32::from(g) + 7_471 * u32::from(b) + 0x8000;
    (sum >> 16) as u8
}

/// cos(pi (2 n + 1) k / 64) for frequency k and pixel n.
static COSINES: LazyLock<[[f64; SIDE]; FREQUENCIES]> = LazyLock::new(|| {
    let angle = |k: usize, n: usize| PI * ((2 * n + 1) * k) as f64 / (2 * SIDE) as f64;
    std::array::from_fn(|k| std::array::from_fn(|n| angle(k, n).cos()))
});

/// The lowest coefficients of the two-dimensional DCT-II, up to a common factor.
fn low_frequencies(pixels: &[[u8; 3]]) -> [f64; FREQUENCIES * FREQUENCIES] {
    let mut rows = [[0.0; FREQUENCIES]; SIDE];
    for (row, pixels) in rows.iter_mut().zip(pixels.chunks_exact(SIDE)) {
        *row = std::array::from_fn(|k| COSINES[k].iter().zip(pixels).map(|(c, p)| c * f64::from(p[0])).sum());
    }
    std::array::from_fn(|i| {
        let (v, u) = (i / FREQUENCIES, i % FREQUENCIES);
        let value: f64 = COSINES[v].iter().zip(&rows).map(|(c, row)| c * row[u]).sum();
        if value.abs() < NOISE { 0.0 } else { value }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(width: u32, height: u32, pixel: impl Fn(u32, u32) -> [u8; 3]) -> Rgb8 {
        let pixels = (0..width * height).flat_map(|i| pixel(i % width, i / width)).collect();
        Rgb8 { width, height, pixels }
    }

    #[test]
    fn flat_image_has_only_the_first_bit() {
        for (width, height) in [(1, 1), (32, 32), (500, 3)] {
            assert_eq!(phash(&image(width, height, |_, _| [200, 10, 90])).unwrap(), 1 << 63);
        }
    }

    #[test]
    fn resizing_and_brightness_change_few_bits() {
        let wave = |x: f64, y: f64| 120.0 + 60.0 * (5.0 * x + 3.0 * y * y).sin() + 40.0 * (9.0 * x * y).cos();
        let draw = |side: u32, gain: f64| {
            let at = |n: u32| (f64::from(n) + 0.5) / f64::from(side);
            image(side, side, |x, y| [(gain * wave(at(x), at(y))) as u8; 3])
        };
        let hash = phash(&draw(300, 1.0)).unwrap();
        for other in [draw(200, 1.0), draw(64, 1.0), draw(300, 0.8)] {
            assert!((phash(&other).unwrap() ^ hash).count_ones() <= 4);
        }
        let mirrored =
            phash(&image(300, 300, |x, y| [wave(1.0 - f64::from(x) / 300.0, f64::from(y) / 300.0) as u8; 3]));
        assert!((mirrored.unwrap() ^ hash).count_ones() > 10);
    }
}
