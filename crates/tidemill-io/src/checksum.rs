//! The checksum of files and blocks: XXH3 with 64 bits. It is written as 16 hexadecimal digits,
//! because JSON readers round large numbers.

use std::fmt;
use std::hash::Hasher;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use twox_hash::XxHash3_64;

/// The XXH3-64 hash of a byte sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Checksum(u64);

impl Checksum {
    /// Computes the checksum of `bytes`.
    pub fn compute(bytes: &[u8]) -> Self {
        Self(XxHash3_64::oneshot(bytes))
    }
}

impl From<&XxHash3_64> for Checksum {
    fn from(hasher: &XxHash3_64) -> Self {
        Self(hasher.finish())
    }
}

impl From<u64> for Checksum {
    fn from(sum: u64) -> Self {
        Self(sum)
    }
}

impl From<Checksum> for u64 {
    fn from(checksum: Checksum) -> Self {
        checksum.0
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl Serialize for Checksum {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Checksum {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        u64::from_str_radix(&text, 16)
            .map(Self)
            .map_err(|_| D::Error::custom(format!("`{text}` is not a checksum")))
    }
}
