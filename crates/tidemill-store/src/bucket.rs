//! Aspect buckets. A bucket is the size in pixels of images whose latents are stored together,
//! because a batch can hold only one size. A resolution has one square bucket, or many buckets of
//! different aspects.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The images of one size at a resolution. The name is `256` for the square of the resolution, and
/// like `256-320x192` for any other size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Bucket {
    /// The resolution in pixels that the images were prepared for.
    pub resolution: u32,
    /// Width of the images in pixels.
    pub width: u32,
    /// Height of the images in pixels.
    pub height: u32,
}

impl Bucket {
    /// The square bucket of a resolution.
    pub fn square(resolution: u32) -> Self {
        Self { resolution, width: resolution, height: resolution }
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { resolution, width, height } = self;
        if *self == Self::square(*resolution) {
            write!(f, "{resolution}")
        } else {
            write!(f, "{resolution}-{width}x{height}")
        }
    }
}

impl FromStr for Bucket {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let parse = || {
            let Some((resolution, size)) = name.split_once('-') else {
                return Some(Self::square(name.parse().ok()?));
            };
            let (width, height) = size.split_once('x')?;
            Some(Self {
                resolution: resolution.parse().ok()?,
                width: width.parse().ok()?,
                height: height.parse().ok()?,
            })
        };
        // Each bucket has exactly one name. Other spellings of its numbers are refused.
        let bucket = parse().filter(|bucket| bucket.to_string() == name);
        bucket.ok_or_else(|| format!("`{name}` is not a bucket; write it like `256` or `256-320x192`"))
    }
}

impl TryFrom<String> for Bucket {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        name.parse()
    }
}

impl From<Bucket> for String {
    fn from(bucket: Bucket) -> Self {
        bucket.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_names_round_trip() {
        let wide = Bucket { resolution: 256, width: 320, height: 192 };
        for (bucket, name) in [
            (Bucket::square(256), "256"),
            (wide, "256-320x192"),
            (Bucket { width: 192, height: 192, ..wide }, "256-192x192"),
        ] {
            assert_eq!(bucket.to_string(), name);
            assert_eq!(name.parse(), Ok(bucket));
        }
        for name in ["", "x", "256-", "256-320", "256-320x", "0256", "256-256x256", "256-+320x192", "-1"] {
            assert!(name.parse::<Bucket>().is_err(), "{name}");
        }
    }
}
