//! Random draws that are a function of the run's seed, the sample id and the purpose. They do not
//! depend on order, so every batch, worker and re-run draws the same numbers.

use twox_hash::XxHash3_64;

/// What a number is drawn for. The discriminants enter the hash, so they must never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The position of a random crop. The index is the resolution.
    Crop = 1,
    /// Whether the image is mirrored left to right.
    Flip = 2,
    /// Which of several captions is used.
    Caption = 3,
    /// Which caption template is used.
    Template = 4,
}

/// Draws the number for a sample, a purpose and an index, uniform over all `u64`: XXH3-64, under
/// the seed, of the sample id, the purpose (u32) and the index, little-endian.
pub fn draw(seed: u64, sample_id: u64, purpose: Purpose, index: u32) -> u64 {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&sample_id.to_le_bytes());
    bytes[8..12].copy_from_slice(&(purpose as u32).to_le_bytes());
    bytes[12..].copy_from_slice(&index.to_le_bytes());
    XxHash3_64::oneshot_with_seed(seed, &bytes)
}

/// The seed of an epoch in which all random choices are made anew: the run's own seed in epoch 0,
/// else XXH3-64, under that seed, of the epoch as 8 little-endian bytes.
pub fn epoch_seed(seed: u64, epoch: u64) -> u64 {
    if epoch == 0 { seed } else { XxHash3_64::oneshot_with_seed(seed, &epoch.to_le_bytes()) }
}

/// Maps a draw to an index from 0 to `length` - 1, or to 0 if `length` is 0. The bias is at most
/// `length` parts in 2^64.
pub fn index_below(draw: u64, length: u32) -> u32 {
    ((u128::from(draw) * u128::from(length)) >> 64) as u32
}

/// Maps a draw to a number in [0, 1) by its upper 53 bits.
pub fn unit_interval(draw: u64) -> f64 {
    (draw >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_depend_on_seed_sample_purpose_and_index() {
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
    fn indices_fill_their_range() {
        assert_eq!((index_below(0, 7), index_below(u64::MAX, 7), index_below(u64::MAX, 0)), (0, 6, 0));
        assert_eq!((index_below(u64::MAX / 2, 2), index_below(u64::MAX / 2 + 1, 2)), (0, 1));
    }
}
