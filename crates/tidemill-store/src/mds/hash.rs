//! The file hashes of `index.json`, under the names that Python's hashlib and xxhash use.

use digest::Digest;
use twox_hash::{XxHash3_64, XxHash3_128, XxHash32, XxHash64};

/// The algorithm of the hashes that this crate writes.
pub const WRITTEN_ALGORITHM: &str = "xxh64";

/// Computes a hash as hexadecimal digits. Returns `None` if the algorithm is not supported.
pub fn compute_hex(algorithm: &str, bytes: &[u8]) -> Option<String> {
    Some(match algorithm {
        "md5" => hex_digest::<md5::Md5>(bytes),
        "sha1" => hex_digest::<sha1::Sha1>(bytes),
        "sha224" => hex_digest::<sha2::Sha224>(bytes),
        "sha256" => hex_digest::<sha2::Sha256>(bytes),
        "sha384" => hex_digest::<sha2::Sha384>(bytes),
        "sha512" => hex_digest::<sha2::Sha512>(bytes),
        "xxh32" => format!("{:08x}", XxHash32::oneshot(0, bytes)),
        "xxh64" => format!("{:016x}", XxHash64::oneshot(0, bytes)),
        "xxh3_64" => format!("{:016x}", XxHash3_64::oneshot(bytes)),
        "xxh3_128" | "xxh128" => format!("{:032x}", XxHash3_128::oneshot(bytes)),
        _ => return None,
    })
}

fn hex_digest<D: Digest>(bytes: &[u8]) -> String {
    D::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
