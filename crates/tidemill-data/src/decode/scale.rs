//! The reduced sizes at which libjpeg-turbo can decode.

/// The size at which a JPEG is decoded, in eighths in both directions: 1, 2, 4 or 8. libjpeg-turbo
/// has vector code for these; other scales gain little or nothing. Other formats are always decoded
/// at full size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scale(pub(crate) u8);

impl Scale {
    /// Full size.
    pub const FULL: Self = Self(8);

    /// The smallest scale at which no length has to be enlarged. For each pair (original pixels,
    /// wanted pixels) the decoded length is at least the wanted length, or the original length if
    /// that is smaller.
    pub fn smallest_for(lengths: impl IntoIterator<Item = (u32, u32)>) -> Self {
        let eighths = |(original, wanted): (u32, u32)| {
            (8 * u64::from(wanted)).div_ceil(u64::from(original.max(1))).clamp(1, 8) as u8
        };
        Self(lengths.into_iter().map(eighths).max().unwrap_or(8).next_power_of_two())
    }

    /// The length of a side at this scale, rounded up.
    pub fn scale_side(self, side: usize) -> usize {
        (side * usize::from(self.0)).div_ceil(8)
    }

    /// Width and height at this scale.
    pub fn scale_size(self, (width, height): (u32, u32)) -> (u32, u32) {
        (self.scale_side(width as usize) as u32, self.scale_side(height as usize) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scale_is_the_smallest_without_enlarging() {
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
            assert_eq!(Scale::smallest_for(lengths.iter().copied()), Scale(eighths), "{lengths:?}");
        }
    }
}
