//! The hashes that `index.json` may give of a file, under the names that Python's hashlib and xxhash have for them.

use digest::Digest;
use xxhash_rust::{xxh3, xxh32, xxh64};

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
        "xxh32" => format!("{:08x}", xxh32::xxh32(bytes, 0)),
        "xxh64" => format!("{:016x}", xxh64::xxh64(bytes, 0)),
        "xxh3_64" => format!("{:016x}", xxh3::xxh3_64(bytes)),
        "xxh3_128" | "xxh128" => format!("{:032x}", xxh3::xxh3_128(bytes)),
        _ => return None,
    })
}

fn of<D: Digest>(bytes: &[u8]) -> String {
    D::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
