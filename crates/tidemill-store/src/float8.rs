//! Tensors of 8-bit floats. They take half the bytes of f16, and every row stores its rounding
//! error.
//!
//! A row is stored as two little-endian f32, the *scale* and the *error*, and then one byte per
//! element: E4M3 without infinities, like torch's `float8_e4m3fn` (Micikevicius et al., "FP8
//! formats for deep learning", 2022). The value of an element is the value of its byte times the
//! scale. The scale is the smallest power of two at which nothing overflows, so that the scale
//! itself costs no precision. The error is |stored - given| / |given| over the row, with Euclidean
//! norms.

use half::f16;
use half::slice::HalfFloatSliceExt;

/// Bytes of a row before its elements: scale and error.
pub const HEADER: usize = 8;

/// The largest E4M3 value.
const MAX: f32 = 448.0;

/// Elements that are converted at a time.
const CHUNK: usize = 512;

/// Independent partial sums, so that the compiler can vectorise.
const PARTIAL_SUMS: usize = 8;

/// The bits of an f32 without its sign.
const MAGNITUDE: u32 = 0x7fff_ffff;

/// Encodes a row of little-endian f16 and appends it to `stored`. Returns `None` and appends
/// nothing if an element is not finite.
pub fn encode(values: &[u8], stored: &mut Vec<u8>) -> Option<()> {
    let halves: Vec<f16> = values.as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes)).collect();
    let values = halves.to_f32_vec();
    // Compared as integers, NaN is larger than all other values.
    let largest = values.iter().map(|value| value.to_bits() & MAGNITUDE).max().map_or(0.0, f32::from_bits);
    if !largest.is_finite() {
        return None;
    }
    let scale = compute_scale(largest);
    let start = stored.len();
    stored.extend_from_slice(&scale.to_le_bytes());
    stored.extend_from_slice(&[0; 4]);
    stored.extend(values.iter().map(|value| to_e4m3(value / scale)));
    let error = compute_rounding_error(&values, scale, &stored[start + HEADER..]);
    stored[start + 4..start + HEADER].copy_from_slice(&error.to_le_bytes());
    Some(())
}

/// Computes the rounding error of a row.
fn compute_rounding_error(values: &[f32], scale: f32, elements: &[u8]) -> f32 {
    let (mut squares, mut errors) = ([0f64; PARTIAL_SUMS], [0f64; PARTIAL_SUMS]);
    for (values, elements) in values.chunks(PARTIAL_SUMS).zip(elements.chunks(PARTIAL_SUMS)) {
        for (i, (value, element)) in values.iter().zip(elements).enumerate() {
            squares[i] += f64::from(value * value);
            let error = from_e4m3(*element) * scale - value;
            errors[i] += f64::from(error * error);
        }
    }
    let (squares, errors): (f64, f64) = (squares.iter().sum(), errors.iter().sum());
    if squares > 0.0 { (errors / squares).sqrt() as f32 } else { 0.0 }
}

/// Decodes a stored row to little-endian f16, two bytes per element. A value too large for f16
/// becomes the largest f16.
pub fn decode(stored: &[u8], values: &mut [u8]) {
    let (scale, elements) = (read_f32(stored, 0), &stored[HEADER.min(stored.len())..]);
    let (mut halves, mut floats) = ([f16::ZERO; CHUNK], [0f32; CHUNK]);
    let largest = f16::MAX.to_f32();
    for (values, elements) in values.chunks_mut(2 * CHUNK).zip(elements.chunks(CHUNK)) {
        let (halves, floats) = (&mut halves[..elements.len()], &mut floats[..elements.len()]);
        for (value, element) in floats.iter_mut().zip(elements) {
            *value = (from_e4m3(*element) * scale).clamp(-largest, largest);
        }
        halves.convert_from_f32_slice(floats);
        for (bytes, half) in values.as_chunks_mut().0.iter_mut().zip(halves) {
            *bytes = half.to_le_bytes();
        }
    }
}

/// Reads the rounding error of a stored row.
pub fn read_rounding_error(stored: &[u8]) -> f32 {
    read_f32(stored, 4)
}

fn read_f32(stored: &[u8], at: usize) -> f32 {
    stored.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0.0, f32::from_le_bytes)
}

/// The smallest power of two by which values up to `largest` can be divided without overflow.
fn compute_scale(largest: f32) -> f32 {
    if largest == 0.0 {
        return 1.0;
    }
    // No f16 value is so small that its exponent here would leave the range of normal f32.
    let power = f32::from_bits(largest.to_bits() & 0x7f80_0000);
    let scale = power / 256.0;
    if largest > MAX * scale { 2.0 * scale } else { scale }
}

/// The bits of 2^-6, the smallest normal E4M3 value, as f32.
const SMALLEST_NORMAL: u32 = (127 - 6) << 23;

/// Converts to E4M3. Rounds to nearest, ties to even. |value| must be at most [`MAX`].
fn to_e4m3(value: f32) -> u8 {
    let sign = (value.to_bits() >> 24) as u8 & 0x80;
    let bits = value.to_bits() & MAGNITUDE;
    // Around 2^14, f32 values have the distance 2^-9, which is that of E4M3 subnormals.
    let subnormal = (f32::from_bits(bits) + 16384.0).to_bits().wrapping_sub(16384f32.to_bits());
    let normal = ((bits + 0x7_ffff + ((bits >> 20) & 1)) >> 20).wrapping_sub((127 - 7) << 3);
    sign | if bits < SMALLEST_NORMAL { subnormal } else { normal } as u8
}

/// The value of an element. Its bits are those of an f32 whose exponent is lower by 120.
fn from_e4m3(element: u8) -> f32 {
    let bits = u32::from(element & 0x80) << 24 | u32::from(element & 0x7f) << 20;
    f32::from_bits(bits) * 2f32.powi(120)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(values: &[f16]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn every_element_round_trips() {
        for element in (0..=255u8).filter(|element| element & 0x7f != 0x7f) {
            assert_eq!(to_e4m3(from_e4m3(element)), element);
        }
        let values = [0x01, 0x08, 0x38, 0xbc, 0x7e].map(from_e4m3);
        assert_eq!(values, [2f32.powi(-9), 2f32.powi(-6), 1.0, -1.5, 448.0]);
    }

    #[test]
    fn values_that_are_not_finite_are_refused() {
        for value in [f16::INFINITY, f16::NEG_INFINITY, f16::NAN] {
            let mut stored = vec![1];
            assert_eq!(encode(&bytes(&[f16::ONE, value]), &mut stored), None);
            assert_eq!(stored, [1]);
        }
    }

    proptest! {
        /// Errors are at most half a step: 1/16 of the value, or half of the smallest subnormal.
        #[test]
        fn decoded_values_are_within_half_a_step(
            bits in prop::collection::vec((any::<u16>(), 0u32..40), 1..1500),
            common in 0u32..2,
        ) {
            let value = |(bits, small): (u16, u32)| {
                let value = f16::from_bits(bits);
                let finite = if value.is_finite() { value.to_f32() } else { 0.0 };
                f16::from_f32(if common == 0 { finite } else { finite * 0.5f32.powi(small as i32) })
            };
            let values: Vec<f16> = bits.into_iter().map(value).collect();
            let mut stored = Vec::new();
            encode(&bytes(&values), &mut stored).unwrap();
            prop_assert_eq!(stored.len(), HEADER + values.len());
            let mut decoded = vec![0; 2 * values.len()];
            decode(&stored, &mut decoded);
            let scale = read_f32(&stored, 0);
            let (mut squares, mut errors) = (0f64, 0f64);
            for ((value, decoded), element) in values.iter().zip(decoded.as_chunks().0).zip(&stored[HEADER..]) {
                let (value, decoded) = (value.to_f32(), f16::from_le_bytes(*decoded).to_f32());
                let exact = from_e4m3(*element) * scale;
                prop_assert!((exact - value).abs() <= (value.abs() / 16.0).max(scale * 2f32.powi(-10)));
                prop_assert_eq!(f16::from_f32(exact.clamp(-65504.0, 65504.0)).to_f32(), decoded);
                squares += f64::from(value).powi(2);
                errors += f64::from(exact - value).powi(2);
            }
            let expected = if squares > 0.0 { (errors / squares).sqrt() } else { 0.0 };
            prop_assert!((f64::from(read_rounding_error(&stored)) - expected).abs() <= 1e-6);
        }
    }
}
