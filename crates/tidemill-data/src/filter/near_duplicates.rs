//! Near duplicates: perceptual hashes within a Hamming distance d of a query. If two hashes differ
//! in at most d bits, at least one of d + 1 bands of bits is equal in both. So the hashes are kept
//! once for each band, sorted by it, and only those with the same band as the query are compared.
//! This takes 8 (d + 1) bytes per entry.

use crate::error::Result;
use crate::filter::list_file::for_each_entry;
use crate::filter::sorted_hashes::{digest_hashes, sort_hashes};
use crate::one_or_many::OneOrMany;

/// A list of perceptual hashes that matches hashes within a distance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NearDuplicateList {
    distance: u32,
    bands: Vec<Band>,
}

/// The hashes, rotated so that this band's bits come first, and sorted.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Band {
    rotation: u32,
    bits: u32,
    hashes: Vec<u64>,
}

/// Loads perceptual hashes, to be matched within `distance` bits.
///
/// # Errors
/// As for [`Blocklist::load`](crate::filter::blocklist::Blocklist::load).
pub fn load_near_duplicates(key: &str, uris: &OneOrMany, distance: u32) -> Result<NearDuplicateList> {
    let mut hashes = Vec::new();
    for_each_entry(key, uris.as_slice(), &mut |entry| {
        let hash = u64::from_str_radix(entry, 16).ok().filter(|_| entry.len() == 16);
        hashes.push(hash.ok_or("is no perceptual hash of 16 hexadecimal digits")?);
        Ok(())
    })?;
    Ok(NearDuplicateList::new(sort_hashes(hashes), distance))
}

impl NearDuplicateList {
    /// Builds the list from unique hashes. It matches within `distance` of 64 bits.
    pub fn new(hashes: Vec<u64>, distance: u32) -> Self {
        let edge = |i: u32| 64 * i / (distance + 1);
        let band = |i: u32| {
            let mut band = Band { rotation: edge(i), bits: edge(i + 1) - edge(i), hashes: hashes.clone() };
            band.hashes.iter_mut().for_each(|hash| *hash = hash.rotate_left(band.rotation));
            band.hashes.sort_unstable();
            band
        };
        Self { distance, bands: (0..=distance).map(band).collect() }
    }

    /// True if a listed hash is within the distance.
    pub fn contains(&self, hash: u64) -> bool {
        self.bands.iter().any(|band| band.contains(hash, self.distance))
    }

    /// BLAKE3 (hex) of the hashes, and the distance.
    pub fn digest(&self) -> String {
        // The first band is not rotated.
        let hashes = self.bands.first().map_or(&[][..], |band| &band.hashes);
        format!("{}-{}", digest_hashes(hashes), self.distance)
    }
}

impl Band {
    fn contains(&self, hash: u64, distance: u32) -> bool {
        let hash = hash.rotate_left(self.rotation);
        let prefix = |hash: u64| hash >> (64 - self.bits);
        let start = self.hashes.partition_point(|&other| prefix(other) < prefix(hash));
        let same = self.hashes[start..].iter().take_while(|&&other| prefix(other) == prefix(hash));
        same.into_iter().any(|&other| (other ^ hash).count_ones() <= distance)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The result equals a scan of all entries, just inside and just outside the distance.
        #[test]
        fn lookup_equals_a_scan_of_all_entries(
            hashes in prop::collection::btree_set(any::<u64>(), 0..50),
            distance in 0..=10_u32,
            pick in any::<prop::sample::Index>(),
            bits in prop::collection::btree_set(0..64_u32, 0..13),
        ) {
            let hashes: Vec<u64> = hashes.into_iter().collect();
            let near = if hashes.is_empty() { 0 } else { *pick.get(&hashes) };
            let query = bits.iter().fold(near, |hash, bit| hash ^ (1 << bit));
            let expected = hashes.iter().any(|hash| (hash ^ query).count_ones() <= distance);
            prop_assert_eq!(NearDuplicateList::new(hashes, distance).contains(query), expected);
        }
    }

    #[test]
    fn digest_depends_on_the_distance() {
        let list = |distance| NearDuplicateList::new(vec![1, 2, 3], distance).digest();
        assert_eq!(list(3), list(3));
        assert_ne!(list(3), list(4));
    }
}
