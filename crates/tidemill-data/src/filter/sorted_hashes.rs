//! Sorted lists of 64-bit hashes.

/// Sorts hashes and removes repeated ones.
pub fn sort_hashes(mut hashes: Vec<u64>) -> Vec<u64> {
    hashes.sort_unstable();
    hashes.dedup();
    hashes.shrink_to_fit();
    hashes
}

/// BLAKE3 (hex) of sorted hashes.
pub fn digest_hashes(hashes: &[u64]) -> String {
    let mut hasher = blake3::Hasher::new();
    for hash in hashes {
        hasher.update(&hash.to_le_bytes());
    }
    hasher.finalize().to_hex().to_string()
}
