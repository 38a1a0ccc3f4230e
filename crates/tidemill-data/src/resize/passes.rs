//! The two passes of a resize, each along one axis, from bytes to bytes. Integer arithmetic gives
//! the same pixels on every machine, by the plain loops here or by those of `avx2.rs` where the CPU
//! has AVX2.

use std::ops::Range;

use pulp::Arch;

use crate::decode::Rgb8;
#[cfg(target_arch = "x86_64")]
use crate::resize::avx2;
use crate::resize::kernel::{Kernel, PRECISION, ROUNDING};

/// Resizes these rows of the image along the horizontal axis.
pub fn horizontal(image: &Rgb8, rows: Range<usize>, kernel: &Kernel) -> Rgb8 {
    let stride = 3 * image.width as usize;
    let input = &image.pixels[rows.start * stride..rows.end * stride];
    let mut output = blank_image(kernel.len(), rows.len());
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = pulp::x86::V3::try_new() {
        avx2::horizontal(simd, input, stride, kernel, &mut output.pixels);
        return output;
    }
    plain_horizontal(input, stride, kernel, &mut output.pixels);
    output
}

fn plain_horizontal(input: &[u8], stride: usize, kernel: &Kernel, output: &mut [u8]) {
    let lines = input.chunks_exact(stride).zip(output.chunks_exact_mut(3 * kernel.len()));
    for (line, output) in lines {
        let pixels = line.as_chunks::<3>().0;
        for (output, (window, weights)) in output.as_chunks_mut::<3>().0.iter_mut().zip(kernel.taps()) {
            let mut sums = [ROUNDING; 3];
            for (pixel, weight) in pixels[window].iter().zip(weights) {
                for (sum, &byte) in sums.iter_mut().zip(pixel) {
                    *sum += i32::from(byte) * weight;
                }
            }
            round_to_bytes(&sums, output);
        }
    }
}

/// Resizes these columns of the image along the vertical axis.
pub fn vertical(image: &Rgb8, columns: Range<usize>, kernel: &Kernel) -> Rgb8 {
    let stride = 3 * image.width as usize;
    let columns = 3 * columns.start..3 * columns.end;
    let mut output = blank_image(columns.len() / 3, kernel.len());
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = pulp::x86::V3::try_new().filter(|_| columns.len() >= avx2::STRIPE) {
        avx2::vertical(simd, &image.pixels, stride, columns, kernel, &mut output.pixels);
        return output;
    }
    plain_vertical(&image.pixels, stride, columns, kernel, &mut output.pixels);
    output
}

fn plain_vertical(input: &[u8], stride: usize, columns: Range<usize>, kernel: &Kernel, output: &mut [u8]) {
    let mut sums = vec![0; columns.len()];
    for ((window, weights), output) in kernel.taps().zip(output.chunks_exact_mut(sums.len())) {
        let rows = input[window.start * stride..window.end * stride].chunks_exact(stride);
        let rows = rows.map(|row| &row[columns.clone()]);
        let sums = sums.as_mut_slice();
        Arch::new().dispatch(move || {
            sums.fill(ROUNDING);
            for (row, &weight) in rows.zip(weights) {
                for (sum, &byte) in sums.iter_mut().zip(row) {
                    *sum += i32::from(byte) * weight;
                }
            }
            round_to_bytes(sums, output);
        });
    }
}

#[inline(always)]
fn round_to_bytes(sums: &[i32], bytes: &mut [u8]) {
    for (byte, &sum) in bytes.iter_mut().zip(sums) {
        *byte = (sum >> PRECISION).clamp(0, 255) as u8;
    }
}

fn blank_image(width: usize, height: usize) -> Rgb8 {
    Rgb8 { width: width as u32, height: height as u32, pixels: vec![0; 3 * width * height] }
}

/// Writes interleaved pixels as planes, `[3, height, width]`. `planes` must have as many bytes as
/// the image.
pub fn to_planes(image: &Rgb8, planes: &mut [u8]) {
    let (red, rest) = planes.split_at_mut(image.pixels.len() / 3);
    let (green, blue) = rest.split_at_mut(red.len());
    let targets = red.iter_mut().zip(green).zip(blue);
    Arch::new().dispatch(move || {
        for (&[r, g, b], ((red, green), blue)) in image.pixels.as_chunks().0.iter().zip(targets) {
            (*red, *green, *blue) = (r, g, b);
        }
    });
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::resize::filter::Resample;

    proptest! {
        /// For all sizes, filters and parts of the image.
        #[test]
        fn avx2_equals_plain_loops(
            (width, height) in (1u32..200, 1u32..40),
            (from, to) in (0.0..1.0, 0.0..1.0),
            output in 1u32..150,
            filter in prop::sample::select(vec![
                Resample::Area, Resample::Bilinear, Resample::Bicubic, Resample::Lanczos,
            ]),
            seed: u64,
        ) {
            let Some(simd) = pulp::x86::V3::try_new() else { return Ok(()) };
            let stride = 3 * width as usize;
            // The extreme values are frequent.
            let input: Vec<u8> = (0..u64::from(height) * stride as u64)
                .map(|i| [0, 255, (seed.wrapping_mul(i | 1) >> 56) as u8][(seed.rotate_left(i as u32) % 3) as usize])
                .collect();
            let part = |length: u32| {
                let (from, to) = (f64::min(from, to) * f64::from(length), f64::max(from, to) * f64::from(length));
                (from, to.max(from + 0.01).min(f64::from(length)))
            };

            let (left, right) = part(width);
            let kernel = Kernel::new(width, left, right, output, filter);
            let mut plain = vec![0; height as usize * 3 * output as usize];
            let mut vector = plain.clone();
            plain_horizontal(&input, stride, &kernel, &mut plain);
            avx2::horizontal(simd, &input, stride, &kernel, &mut vector);
            prop_assert_eq!(&plain, &vector);

            let (top, bottom) = part(height);
            let kernel = Kernel::new(height, top, bottom, output, filter);
            let columns = stride / 5..stride;
            if columns.len() >= avx2::STRIPE {
                let mut plain = vec![0; columns.len() * output as usize];
                let mut vector = plain.clone();
                plain_vertical(&input, stride, columns.clone(), &kernel, &mut plain);
                avx2::vertical(simd, &input, stride, columns, &kernel, &mut vector);
                prop_assert_eq!(plain, vector);
            }
        }
    }
}
