//! Random numbers that follow from what they are for: the run's seed, the sample and the purpose. They depend on no
//! order, so any batch, worker or re-run draws the same.

use twox_hash::XxHash3_64;

/// What a number is drawn for. The values are part of what a seed means: they never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Where the crop lies; the index is the resolution.
    Crop = 1,
    /// Whether the image is mirrored.
    Flip = 2,
    /// Which of several captions is used.
    Caption = 3,
    /// Which template the caption is put into.
    Template = 4,
}

/// The number of this purpose and index for a sample, uniform over all `u64`: XXH3-64, under the seed, of the sample
/// id, the purpose (u32) and the index, little-endian.
pub fn draw(seed: u64, sample_id: u64, purpose: Purpose, index: u32) -> u64 {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&sample_id.to_le_bytes());
    bytes[8..12].copy_from_slice(&(purpose as u32).to_le_bytes());
    bytes[12..].copy_from_slice(&index.to_le_bytes());
    XxHash3_64::oneshot_with_seed(seed, &bytes)
}

/// The seed of an epoch in which everything is drawn anew: the run's own in epoch 0, then XXH3-64, under it, of the
/// epoch as 8 little-endian bytes.
pub fn seed_of_epoch(seed: u64, epoch: u64) -> u64 {
    if epoch == 0 { seed } else { XxHash3_64::oneshot_with_seed(seed, &epoch.to_le_bytes()) }
}

/// Makes a draw a whole number from 0 to `below` - 1, each equally likely but for `below` parts in 2^64. It is 0 if
/// `below` is.
pub fn below(draw: u64, below: u32) -> u32 {
    ((u128::from(draw) * u128::from(below)) >> 64) as u32
}

/// Makes a draw a number in [0, 1): its upper 53 bits.
pub fn fraction(draw: u64) -> f64 {
    (draw >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_the_name_matters() {
        let base = draw(1, 2, Purpose::Crop, 256);
        assert_eq!(base, draw(1, 2, Purpose::Crop, 256));
        for other in [
            draw(2, 2, Purpose::Crop, 256),
            draw(1, 3, Purpose::Crop, 256),
            draw(1, 2, Purpose::Flip, 256),
            draw(1, 2, Purpose::Crop, 512),
        ] {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn whole_numbers_fill_their_range() {
        assert_eq!((below(0, 7), below(u64::MAX, 7), below(u64::MAX, 0)), (0, 6, 0));
        assert_eq!((below(u64::MAX / 2, 2), below(u64::MAX / 2 + 1, 2)), (0, 1));
    }
}
