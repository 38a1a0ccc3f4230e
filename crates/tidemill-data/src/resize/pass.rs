//! The two passes of a resize, each along one axis, from bytes to bytes. They are compiled for AVX2 as well and chosen
//! at run time; the arithmetic is in whole numbers, so that every machine gives the same pixels.

use std::ops::Range;

use multiversion::multiversion;

use super::kernel::{Kernel, PRECISION};
use crate::decode::Rgb8;

/// Half of the last bit that stays, so that the shift rounds.
const HALF: i32 = 1 << (PRECISION - 1);

/// Rows that the horizontal pass takes at once: a vector register then has work in every part.
const ROWS: usize = 2;

/// One column of `ROWS` rows: red, green, blue and nothing, each.
type Column = [i32; 4 * ROWS];

/// Resizes the rows `rows` of the image along the horizontal axis.
pub fn horizontal(image: &Rgb8, rows: Range<usize>, kernel: &Kernel) -> Rgb8 {
    let (stride, reach) = (3 * image.width as usize, kernel.reach());
    let mut output = blank(kernel.len(), rows.len());
    let mut columns = vec![[0; 4 * ROWS]; image.width as usize];
    let from = image.pixels[rows.start * stride..rows.end * stride].chunks(ROWS * stride);
    for (from, to) in from.zip(output.pixels.chunks_mut(ROWS * 3 * kernel.len())) {
        for (row, line) in from.chunks_exact(stride).enumerate() {
            widen(&line[3 * reach.start..3 * reach.end], &mut columns[reach.clone()], 4 * row);
        }
        horizontal_rows(&columns, kernel, to);
    }
    output
}

/// Puts a row's pixels into the columns, from lane `lane` on.
#[multiversion(targets("x86_64+avx2"))]
fn widen(line: &[u8], columns: &mut [Column], lane: usize) {
    for (column, pixel) in columns.iter_mut().zip(line.as_chunks::<3>().0) {
        for (wide, &byte) in column[lane..].iter_mut().zip(pixel) {
            *wide = byte.into();
        }
    }
}

#[multiversion(targets("x86_64+avx2"))]
fn horizontal_rows(columns: &[Column], kernel: &Kernel, output: &mut [u8]) {
    let stride = 3 * kernel.len();
    for (pixel, (window, weights)) in kernel.taps().enumerate() {
        let mut sums = [HALF; 4 * ROWS];
        for (column, &weight) in columns[window].iter().zip(weights) {
            for (sum, value) in sums.iter_mut().zip(column) {
                *sum += value * weight;
            }
        }
        for (row, sums) in output.chunks_exact_mut(stride).zip(sums.as_chunks::<4>().0) {
            for (byte, &sum) in row[3 * pixel..3 * pixel + 3].iter_mut().zip(sums) {
                *byte = to_byte(sum);
            }
        }
    }
}

/// Resizes the columns `columns` of the image along the vertical axis.
pub fn vertical(image: &Rgb8, columns: Range<usize>, kernel: &Kernel) -> Rgb8 {
    let mut output = blank(columns.len(), kernel.len());
    let mut sums = vec![0; 3 * columns.len()];
    let rows = output.pixels.chunks_exact_mut(sums.len());
    for ((window, weights), output) in kernel.taps().zip(rows) {
        let stride = 3 * image.width as usize;
        let inputs = image.pixels[window.start * stride..window.end * stride].chunks_exact(stride);
        sums.fill(HALF);
        for (input, &weight) in inputs.zip(weights) {
            add_row(&mut sums, &input[3 * columns.start..3 * columns.end], weight);
        }
        to_bytes(&sums, output);
    }
    output
}

#[multiversion(targets("x86_64+avx2"))]
fn add_row(sums: &mut [i32], row: &[u8], weight: i32) {
    for (sum, &byte) in sums.iter_mut().zip(row) {
        *sum += i32::from(byte) * weight;
    }
}

#[multiversion(targets("x86_64+avx2"))]
fn to_bytes(sums: &[i32], bytes: &mut [u8]) {
    for (byte, &sum) in bytes.iter_mut().zip(sums) {
        *byte = to_byte(sum);
    }
}

#[inline(always)]
fn to_byte(sum: i32) -> u8 {
    (sum >> PRECISION).clamp(0, 255) as u8
}

fn blank(width: usize, height: usize) -> Rgb8 {
    Rgb8 { width: width as u32, height: height as u32, pixels: vec![0; 3 * width * height] }
}

/// Writes interleaved pixels as planes: `[3, height, width]`. `planes` holds as many bytes as the image has.
pub fn to_planes(image: &Rgb8, planes: &mut [u8]) {
    deinterleave(&image.pixels, planes);
}

#[multiversion(targets("x86_64+avx2"))]
fn deinterleave(pixels: &[u8], planes: &mut [u8]) {
    let (red, rest) = planes.split_at_mut(pixels.len() / 3);
    let (green, blue) = rest.split_at_mut(red.len());
    let targets = red.iter_mut().zip(green).zip(blue);
    for (&[r, g, b], ((red, green), blue)) in pixels.as_chunks().0.iter().zip(targets) {
        (*red, *green, *blue) = (r, g, b);
    }
}
