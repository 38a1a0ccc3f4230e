//! Column groups: the rows, the latents of each bucket, and what each text encoder gives are separate files in
//! every unit.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::bucket::Bucket;
use crate::dataset::split::Split;
use crate::dataset::text_column::TextColumn;

/// A column group. Each group is a file of its own in every unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ColumnGroup {
    /// Every row read, without its tensors.
    Rows,
    /// Image latents of a bucket.
    Latents(Split, Bucket),
    /// What one text encoder gives: hidden states, pooled text, or token ids.
    Text(Split, TextColumn),
    /// Sizes of image and crop of a bucket, for SDXL.
    TimeIds(Split, Bucket),
}

impl ColumnGroup {
    /// The split of the group, or `None` for the group of all rows.
    pub fn split(self) -> Option<Split> {
        match self {
            Self::Rows => None,
            Self::Latents(split, _) | Self::Text(split, _) | Self::TimeIds(split, _) => Some(split),
        }
    }

    /// The same column group in another split.
    pub fn in_split(self, split: Split) -> Self {
        match self {
            Self::Rows => Self::Rows,
            Self::Latents(_, bucket) => Self::Latents(split, bucket),
            Self::Text(_, column) => Self::Text(split, column),
            Self::TimeIds(_, bucket) => Self::TimeIds(split, bucket),
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
            Self::Text(_, column) => Some(column.to_string()),
            Self::TimeIds(_, bucket) => Some(format!("time_ids_{}", bucket.resolution)),
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
            Self::Text(_, column) => write!(f, "{column}"),
            Self::TimeIds(_, bucket) => write!(f, "time_ids-{bucket}"),
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
        let unknown = || format!("`{name}` is not a column group that this version knows");
        let bucket = |text: &str| text.parse().map_err(|_| unknown());
        match rest.split_once('-') {
            None if rest == "rows" && split == Split::Train => Ok(Self::Rows),
            None => Ok(Self::Text(split, rest.parse().map_err(|()| unknown())?)),
            Some(("latents", text)) => Ok(Self::Latents(split, bucket(text)?)),
            Some(("time_ids", text)) => Ok(Self::TimeIds(split, bucket(text)?)),
            Some(_) => Err(unknown()),
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
            let images = [square, wide]
                .map(|bucket| [ColumnGroup::Latents(split, bucket), ColumnGroup::TimeIds(split, bucket)]);
            let texts =
                [TextColumn::FIRST, TextColumn::hidden(2), TextColumn::pooled(1), TextColumn::pooled(2)]
                    .map(|column| ColumnGroup::Text(split, column));
            for group in [ColumnGroup::Rows].into_iter().chain(texts).chain(images.concat()) {
                assert_eq!(group.to_string().parse(), Ok(group));
            }
        }
        assert_eq!(ColumnGroup::Latents(Split::Validation, square).to_string(), "validation-latents-256");
        assert_eq!(ColumnGroup::Latents(Split::Train, wide).to_string(), "latents-256-320x192");
        let text = ColumnGroup::Text(Split::Validation, TextColumn::pooled(2));
        assert_eq!(text.to_string(), "validation-pooled_2");
        for name in
            ["validation-rows", "latents-x", "text_1", "text_0", "text_x", "pooled_02", "texts", "time_ids"]
        {
            assert!(name.parse::<ColumnGroup>().is_err(), "{name}");
        }
    }
}
