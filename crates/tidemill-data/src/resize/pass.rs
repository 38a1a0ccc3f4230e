//! The two passes of a resize, each along one axis, from bytes to bytes. They use the vector instructions that the
//! machine turns out to have; the arithmetic is in whole numbers, so that every machine gives the same pixels.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use super::kernel::{Kernel, PRECISION};
use crate::decode::Rgb8;

/// Half of the last bit that stays, so that the shift rounds.
const HALF: i32 = 1 << (PRECISION - 1);

/// Rows that the horizontal pass takes at once, so that vector registers are full and weights are loaded once for all.
const ROWS: usize = 4;

const LANES: usize = 4 * ROWS;

/// `ROWS` pixels below each other: red, green, blue and one value of no meaning, each.
type Column = [i32; LANES];

/// Resizes the rows `rows` of the image along the horizontal axis.
pub fn horizontal(image: &Rgb8, rows: Range<usize>, kernel: &Kernel) -> Rgb8 {
    let (stride, reach) = (3 * image.width as usize, kernel.reach());
    let mut output = blank(kernel.len(), rows.len());
    let mut columns = vec![[0; LANES]; image.width as usize];
    let mut sums = vec![[0; LANES]; kernel.len()];
    let mut bytes = vec![0; LANES * kernel.len()];
    let from = image.pixels[rows.start * stride..rows.end * stride].chunks(ROWS * stride);
    for (from, output) in from.zip(output.pixels.chunks_mut(ROWS * 3 * kernel.len())) {
        // Below the last row it is repeated; what comes of that is not read.
        let lines = std::array::from_fn(|row| {
            let start = stride * row.min(from.len() / stride - 1);
            &from[start + 3 * reach.start..start + 3 * reach.end]
        });
        let used = &mut columns[reach.clone()];
        Arch::new().dispatch(move || widen(lines, used));
        Arch::new().dispatch(Convolution { columns: &columns, kernel, sums: &mut sums });
        let (values, to) = (sums.as_flattened(), bytes.as_mut_slice());
        Arch::new().dispatch(move || to_bytes(values, to));
        for (row, line) in output.chunks_exact_mut(3 * kernel.len()).enumerate() {
            for (pixel, column) in line.as_chunks_mut::<3>().0.iter_mut().zip(bytes.chunks_exact(LANES)) {
                pixel.copy_from_slice(&column[4 * row..4 * row + 3]);
            }
        }
    }
    output
}

/// Puts the pixels of several rows into columns.
#[inline(always)]
fn widen(lines: [&[u8]; ROWS], columns: &mut [Column]) {
    let Some((last, columns)) = columns.split_last_mut() else { return };
    for (x, column) in columns.iter_mut().enumerate() {
        for (lanes, line) in column.as_chunks_mut::<4>().0.iter_mut().zip(lines) {
            // Four bytes at once are one instruction; the last belongs to the next pixel.
            for (lane, &byte) in lanes.iter_mut().zip(&line[3 * x..3 * x + 4]) {
                *lane = byte.into();
            }
        }
    }
    for (lanes, line) in last.as_chunks_mut::<4>().0.iter_mut().zip(lines) {
        for (lane, &byte) in lanes.iter_mut().zip(&line[line.len() - 3..]) {
            *lane = byte.into();
        }
    }
}

/// For each output pixel the weighted sum of columns.
struct Convolution<'a> {
    columns: &'a [Column],
    kernel: &'a Kernel,
    sums: &'a mut [Column],
}

impl WithSimd for Convolution<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (columns, _) = S::as_simd_i32s(self.columns.as_flattened());
        let (outputs, _) = S::as_mut_simd_i32s(self.sums.as_flattened_mut());
        let per_column = LANES / S::I32_LANES;
        for ((window, weights), output) in self.kernel.taps().zip(outputs.chunks_exact_mut(per_column)) {
            let mut sums = [simd.splat_i32s(HALF); LANES];
            let columns = &columns[per_column * window.start..per_column * window.end];
            for (column, &weight) in columns.chunks_exact(per_column).zip(weights) {
                let weight = simd.splat_i32s(weight);
                for (sum, &values) in sums.iter_mut().zip(column) {
                    *sum = simd.add_i32s(*sum, simd.mul_i32s(values, weight));
                }
            }
            output.copy_from_slice(&sums[..per_column]);
        }
    }
}

/// Resizes the columns `columns` of the image along the vertical axis.
pub fn vertical(image: &Rgb8, columns: Range<usize>, kernel: &Kernel) -> Rgb8 {
    let stride = 3 * image.width as usize;
    let mut output = blank(columns.len(), kernel.len());
    let mut sums = vec![0; 3 * columns.len()];
    let rows = output.pixels.chunks_exact_mut(sums.len());
    for ((window, weights), output) in kernel.taps().zip(rows) {
        let inputs = image.pixels[window.start * stride..window.end * stride].chunks_exact(stride);
        let inputs = inputs.map(|row| &row[3 * columns.start..3 * columns.end]);
        let sums = sums.as_mut_slice();
        Arch::new().dispatch(move || {
            sums.fill(HALF);
            for (row, &weight) in inputs.zip(weights) {
                add_row(sums, row, weight);
            }
            to_bytes(sums, output);
        });
    }
    output
}

#[inline(always)]
fn add_row(sums: &mut [i32], row: &[u8], weight: i32) {
    for (sum, &byte) in sums.iter_mut().zip(row) {
        *sum += i32::from(byte) * weight;
    }
}

#[inline(always)]
fn to_bytes(sums: &[i32], bytes: &mut [u8]) {
    for (byte, &sum) in bytes.iter_mut().zip(sums) {
        *byte = (sum >> PRECISION).clamp(0, 255) as u8;
    }
}

fn blank(width: usize, height: usize) -> Rgb8 {
    Rgb8 { width: width as u32, height: height as u32, pixels: vec![0; 3 * width * height] }
}

/// Writes interleaved pixels as planes: `[3, height, width]`. `planes` holds as many bytes as the image has.
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
