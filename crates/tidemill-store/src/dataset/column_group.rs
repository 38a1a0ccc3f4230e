//! Column groups: the rows, the latents of each bucket, and the text are separate files in every
//! unit.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::bucket::Bucket;
use crate::dataset::split::Split;

/// A column group. Each group is a file of its own in every unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ColumnGroup {
    /// Every row read, without its tensors.
    Rows,
    /// Image latents of a bucket.
    Latents(Split, Bucket),
    /// Text embeddings or token ids.
    Text(Split),
}

impl ColumnGroup {
    /// The split of the group, or `None` for the group of all rows.
    pub fn split(self) -> Option<Split> {
        match self {
            Self::Rows => None,
            Self::Latents(split, _) | Self::Text(split) => Some(split),
        }
    }

    /// The same column group in another split.
    pub fn in_split(self, split: Split) -> Self {
        match self {
            Self::Rows => Self::Rows,
            Self::Latents(_, resolution) => Self::Latents(split, resolution),
            Self::Text(_) => Self::Text(split),
        }
    }

    /// Key of the group's file in the folder of an attempt.
    pub(crate) fn path(self, folder: &str) -> String {
        format!("{folder}/{self}.parquet")
    }

    /// Name of the tensor column, or `None` for the group of all rows.
    pub fn column(self) -> Option<String> {
        match self {
            Self::Rows => None,
            Self::Latents(_, bucket) => Some(format!("latents_{}", bucket.resolution)),
            Self::Text(_) => Some("text".into()),
        }
    }
}

impl fmt::Display for ColumnGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.split() == Some(Split::Validation) {
            f.write_str("validation-")?;
        }
        match self {
            Self::Rows => f.write_str("rows"),
            Self::Latents(_, bucket) => write!(f, "latents-{bucket}"),
            Self::Text(_) => f.write_str("text"),
        }
    }
}

impl FromStr for ColumnGroup {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let (split, rest) = match name.strip_prefix("validation-") {
            Some(rest) => (Split::Validation, rest),
            None => (Split::Train, name),
        };
        match (rest, rest.strip_prefix("latents-").map(str::parse)) {
            ("rows", _) if split == Split::Train => Ok(Self::Rows),
            ("text", _) => Ok(Self::Text(split)),
            (_, Some(Ok(bucket))) => Ok(Self::Latents(split, bucket)),
            _ => Err(format!("`{name}` is not a column group that this version knows")),
        }
    }
}

impl TryFrom<String> for ColumnGroup {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        name.parse()
    }
}

impl From<ColumnGroup> for String {
    fn from(group: ColumnGroup) -> Self {
        group.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_names_round_trip() {
        let (square, wide) = (Bucket::square(256), Bucket { resolution: 256, width: 320, height: 192 });
        for split in Split::ALL {
            let latents = [square, wide].map(|bucket| ColumnGroup::Latents(split, bucket));
            for group in [ColumnGroup::Rows, ColumnGroup::Text(split)].into_iter().chain(latents) {
                assert_eq!(group.to_string().parse(), Ok(group));
            }
        }
        assert_eq!(ColumnGroup::Latents(Split::Validation, square).to_string(), "validation-latents-256");
        assert_eq!(ColumnGroup::Latents(Split::Train, wide).to_string(), "latents-256-320x192");
        assert!(
            "validation-rows".parse::<ColumnGroup>().is_err() && "latents-x".parse::<ColumnGroup>().is_err()
        );
    }
}
