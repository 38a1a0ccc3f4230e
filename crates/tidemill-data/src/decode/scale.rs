//! The scale at which a JPEG is decoded.

/// At how many eighths of its size, in both directions, a JPEG is decoded: 1, 2, 4 or 8, the ones for which
/// libjpeg-turbo has vector code; the others gain little or nothing. Other formats are always whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scale(pub(crate) u8);

impl Scale {
    /// Every pixel.
    pub const FULL: Self = Self(8);

    /// The smallest at which no length has to grow: for every pair (pixels in the original, pixels wanted) the decoded
    /// length is at least the one wanted, or the original's where that is smaller.
    pub fn reaching(lengths: impl IntoIterator<Item = (u32, u32)>) -> Self {
        let eighths = |(original, wanted): (u32, u32)| {
            (8 * u64::from(wanted)).div_ceil(u64::from(original.max(1))).clamp(1, 8) as u8
        };
        Self(lengths.into_iter().map(eighths).max().unwrap_or(8).next_power_of_two())
    }

    /// A side at this scale.
    pub fn of(self, side: usize) -> usize {
        (side * usize::from(self.0)).div_ceil(8)
    }

    /// Width and height at this scale.
    pub fn of_size(self, (width, height): (u32, u32)) -> (u32, u32) {
        (self.of(width as usize) as u32, self.of(height as usize) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_is_the_smallest_that_reaches() {
        let cases: [(&[(u32, u32)], u8); 8] = [
            (&[(768, 256)], 4),
            (&[(2048, 256)], 1),
            (&[(2047, 256)], 2),
            (&[(512, 256)], 4),
            (&[(256, 256)], 8),
            (&[(100, 256)], 8),
            (&[(4000, 256), (4000, 1024)], 4),
            (&[], 8),
        ];
        for (lengths, eighths) in cases {
            assert_eq!(Scale::reaching(lengths.iter().copied()), Scale(eighths), "{lengths:?}");
        }
    }
}
