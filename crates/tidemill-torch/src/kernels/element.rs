//! What tensors hold, as numbers to compute with.

use tch::Kind;

/// An element, which is computed with in f32.
pub trait Element: Copy + Send + Sync {
    /// Its dtype.
    const KIND: Kind;

    /// Its value.
    fn get(self) -> f32;

    /// The nearest to a value; of two as near, the even one.
    fn of(value: f32) -> Self;

    /// One of the two around a value, each the more often the nearer it is, so that sums of what is too small for a step between
    /// them come out right on average. `draw` is 16 random bits.
    fn drawn(value: f32, draw: u32) -> Self;
}

impl Element for f32 {
    const KIND: Kind = Kind::Float;

    #[inline(always)]
    fn get(self) -> f32 {
        self
    }

    #[inline(always)]
    fn of(value: f32) -> Self {
        value
    }

    #[inline(always)]
    fn drawn(value: f32, _: u32) -> Self {
        value
    }
}

/// The upper half of an f32.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Bf16(u16);

impl Element for Bf16 {
    const KIND: Kind = Kind::BFloat16;

    #[inline(always)]
    fn get(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    #[inline(always)]
    fn of(value: f32) -> Self {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) >> 16;
        // Of a NaN the addition could make something else.
        Self(if value.is_nan() { 0x7FC0 } else { rounded as u16 })
    }

    #[inline(always)]
    fn drawn(value: f32, draw: u32) -> Self {
        let rounded = value.to_bits().wrapping_add(draw) >> 16;
        if value.is_finite() { Self(rounded as u16) } else { Self::of(value) }
    }
}

#[cfg(test)]
mod tests {
    use tch::Tensor;

    use super::*;

    #[test]
    fn rounding_is_libtorchs() {
        // Whatever the lower half, around all that matters of the upper one.
        let bits = (0..=u16::MAX).step_by(7).flat_map(|high| {
            [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF].map(|low: u32| u32::from(high) << 16 | low)
        });
        let numbers: Vec<f32> = bits.map(f32::from_bits).collect();
        let theirs = Tensor::from_slice(&numbers).to_kind(Kind::BFloat16).to_kind(Kind::Float);
        let theirs = Vec::<f32>::try_from(&theirs).unwrap();
        for (number, theirs) in numbers.iter().zip(theirs) {
            let ours = Bf16::of(*number).get();
            assert!(ours == theirs || ours.is_nan() && theirs.is_nan(), "{number:e}: {ours:e}, {theirs:e}");
        }
    }
}
