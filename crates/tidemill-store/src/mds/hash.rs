//! The hashes that `index.json` may give of a file, under the names that Python's hashlib and xxhash have for them.

use digest::Digest;
use twox_hash::{XxHash3_64, XxHash3_128, XxHash32, XxHash64};

/// The algorithm of the hashes that we write.
pub const WRITTEN: &str = "xxh64";

/// A hash as hexadecimal digits; `None` if the algorithm is not known here.
pub fn hex(algorithm: &str, bytes: &[u8]) -> Option<String> {
    Some(match algorithm {
        "md5" => of::<md5::Md5>(bytes),
        "sha1" => of::<sha1::Sha1>(bytes),
        "sha224" => of::<sha2::Sha224>(bytes),
        "sha256" => of::<sha2::Sha256>(bytes),
        "sha384" => of::<sha2::Sha384>(bytes),
        "sha512" => of::<sha2::Sha512>(bytes),
        "xxh32" => format!("{:08x}", XxHash32::oneshot(0, bytes)),
        "xxh64" => format!("{:016x}", XxHash64::oneshot(0, bytes)),
        "xxh3_64" => format!("{:016x}", XxHash3_64::oneshot(bytes)),
        "xxh3_128" | "xxh128" => format!("{:032x}", XxHash3_128::oneshot(bytes)),
        _ => return None,
    })
}

fn of<D: Digest>(bytes: &[u8]) -> String {
    D::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
