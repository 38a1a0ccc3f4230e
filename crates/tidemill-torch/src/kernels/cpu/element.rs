//! The dtypes of tensors as types of Rust. Kernels compute in f32.

use tch::Kind;

/// An element of a tensor.
pub trait Element: Copy + Send + Sync {
    /// The dtype of tensors with such elements.
    const KIND: Kind;

    /// The value, exactly.
    fn to_f32(self) -> f32;

    /// Rounds a value to the nearest element; of two as near, to the even one.
    fn from_f32(value: f32) -> Self;

    /// Rounds a value up or down by `random_bits` (16 bits), to the nearer the more often
    /// (stochastic rounding): so sums of values that are too small to change an element by
    /// themselves are right on average.
    fn from_f32_stochastic(value: f32, random_bits: u32) -> Self;
}

impl Element for f32 {
    const KIND: Kind = Kind::Float;

    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }

    #[inline(always)]
    fn from_f32_stochastic(value: f32, _: u32) -> Self {
        value
    }
}

/// bfloat16: the upper half of an f32.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Bf16(u16);

impl Element for Bf16 {
    const KIND: Kind = Kind::BFloat16;

    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) >> 16;
        // The addition could turn a NaN into a number.
        Self(if value.is_nan() { 0x7FC0 } else { rounded as u16 })
    }

    #[inline(always)]
    fn from_f32_stochastic(value: f32, random_bits: u32) -> Self {
        let rounded = value.to_bits().wrapping_add(random_bits) >> 16;
        if value.is_finite() { Self(rounded as u16) } else { Self::from_f32(value) }
    }
}

#[cfg(test)]
mod tests {
    use tch::Tensor;

    use super::*;

    #[test]
    fn bf16_rounds_as_libtorch_does() {
        // Lower halves around the points where rounding changes, with many upper halves.
        let bits = (0..=u16::MAX).step_by(7).flat_map(|high| {
            [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF].map(|low: u32| u32::from(high) << 16 | low)
        });
        let numbers: Vec<f32> = bits.map(f32::from_bits).collect();
        let theirs = Tensor::from_slice(&numbers).to_kind(Kind::BFloat16).to_kind(Kind::Float);
        let theirs = Vec::<f32>::try_from(&theirs).unwrap();
        for (number, theirs) in numbers.iter().zip(theirs) {
            let ours = Bf16::from_f32(*number).to_f32();
            assert!(ours == theirs || ours.is_nan() && theirs.is_nan(), "{number:e}: {ours:e}, {theirs:e}");
        }
    }
}
