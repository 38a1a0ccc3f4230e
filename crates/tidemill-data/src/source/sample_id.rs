//! Sample ids: 64-bit hashes that identify a row in all runs.

use twox_hash::XxHash3_64;

/// Computes the id of a row: XXH3 of the identity of its file (or of its key) and its index there.
pub fn sample_id(identity: &str, row: u64) -> u64 {
    let mut bytes = Vec::with_capacity(identity.len() + 8);
    bytes.extend_from_slice(identity.as_bytes());
    bytes.extend_from_slice(&row.to_le_bytes());
    XxHash3_64::oneshot(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample_ids_differ_by_row_and_file() {
        let ids = [sample_id("a", 0), sample_id("a", 1), sample_id("b", 0)];
        assert_eq!(ids, [sample_id("a", 0), sample_id("a", 1), sample_id("b", 0)]);
        assert!(ids[0] != ids[1] && ids[0] != ids[2] && ids[1] != ids[2]);
    }
}
