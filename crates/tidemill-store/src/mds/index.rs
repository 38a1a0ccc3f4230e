//! `index.json`: which shards a folder has, their columns, sizes and hashes.

use std::collections::{BTreeMap, BTreeSet};

use arrow::datatypes::DataType;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::hash;

/// The name of the index.
pub const INDEX: &str = "index.json";

/// The version of index and shards.
pub(super) const VERSION: u32 = 2;

/// The one format whose shards can be read here.
pub(super) const FORMAT: &str = "mds";

/// The index of a folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Index {
    /// The shards, in the order of their samples.
    pub shards: Vec<ShardInfo>,
    /// 2.
    pub version: u32,
}

/// What the index says of a shard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShardInfo {
    /// What the shard says of itself.
    #[serde(flatten)]
    pub config: ShardConfig,
    /// The shard before compression.
    pub raw_data: FileInfo,
    /// Number of samples.
    pub samples: u32,
    /// The compressed file, if there is compression.
    pub zip_data: Option<FileInfo>,
}

/// How a shard was written. The shard holds it too, as JSON with its keys in this order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShardConfig {
    /// How each column's values became bytes.
    pub column_encodings: Vec<String>,
    /// The columns, by name.
    pub column_names: Vec<String>,
    /// The bytes of a value, where all have as many.
    pub column_sizes: Vec<Option<u32>>,
    /// The algorithm, with or without its level, as in `zstd:7`.
    pub compression: Option<String>,
    /// `mds`.
    pub format: String,
    /// The algorithms of the files' hashes.
    pub hashes: Vec<String>,
    /// The size that a raw shard was not to exceed.
    pub size_limit: Value,
    /// 2.
    pub version: u32,
}

/// A file of a shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileInfo {
    /// Its path beside the index.
    pub basename: String,
    /// Its size.
    pub bytes: u64,
    /// Its hashes by algorithm, as hexadecimal digits.
    pub hashes: BTreeMap<String, String>,
}

/// A column of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// How its values became bytes: `bytes`, `str`, `int32`, ...
    pub encoding: String,
    /// The bytes of a value, if all have as many.
    pub size: Option<u32>,
}

impl Index {
    /// Reads an index and checks that its shards can be read here.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let index: Self = serde_json::from_slice(bytes)
            .map_err(|e| format!("is no index of MDS shards in version {VERSION}: {e}"))?;
        if index.version != VERSION {
            return Err(format!("has version {}; only version {VERSION} is known", index.version));
        }
        for (i, shard) in index.shards.iter().enumerate() {
            shard.problem().map_or(Ok(()), |problem| Err(format!("shard {i}: {problem}")))?;
        }
        Ok(index)
    }
}

impl ShardInfo {
    /// The columns, in their order in a sample.
    pub fn columns(&self) -> Vec<Column> {
        let ShardConfig { column_names, column_encodings, column_sizes, .. } = &self.config;
        let columns = column_names.iter().zip(column_encodings).zip(column_sizes);
        // A size of 0 means the same as none.
        columns
            .map(|((name, encoding), size)| Column {
                name: name.clone(),
                encoding: encoding.clone(),
                size: size.filter(|size| *size > 0),
            })
            .collect()
    }

    /// The files that the shard may lie in, the compressed one first.
    pub fn files(&self) -> impl Iterator<Item = &FileInfo> {
        self.zip_data.iter().chain([&self.raw_data])
    }

    /// Why it cannot be read, if it cannot.
    fn problem(&self) -> Option<String> {
        let ShardConfig {
            column_names, column_encodings, column_sizes, compression, format, version, ..
        } = &self.config;
        if (format.as_str(), *version) != (FORMAT, VERSION) {
            return Some(format!("its format is {format} {version}; only {FORMAT} {VERSION} is known"));
        }
        match (compression.as_deref(), &self.zip_data) {
            (None, None) => (),
            (Some(name), Some(_)) if name == "zstd" || name.starts_with("zstd:") => (),
            (Some(name), Some(_)) => {
                return Some(format!(
                    "its compression is {name}; only zstd is known: decompress the shards, or write them anew"
                ));
            }
            _ => return Some("compression without a compressed file, or the other way round".into()),
        }
        if column_names.len() != column_encodings.len() || column_names.len() != column_sizes.len() {
            return Some("its columns have not as many names, encodings and sizes".into());
        }
        if column_names.iter().collect::<BTreeSet<_>>().len() != column_names.len() {
            return Some("two of its columns have the same name".into());
        }
        let columns = self.columns();
        if let Some(column) =
            columns.iter().find(|column| column.width().is_some_and(|w| column.size != Some(w)))
        {
            let Column { name, encoding, size } = column;
            return Some(format!("column `{name}` is {encoding} of {size:?} bytes"));
        }
        // Offsets within a shard are u32.
        if self.raw_data.bytes > u64::from(u32::MAX) {
            return Some(format!("{} bytes are more than a shard can have", self.raw_data.bytes));
        }
        let mut paths = self.files().map(|file| file.basename.as_str());
        let stray = paths.find(|path| path.split('/').any(|part| matches!(part, "" | "." | "..")));
        stray.map(|path| format!("`{path}` is no path below the index"))
    }
}

impl Column {
    /// A column with the one size that its encoding allows.
    pub fn new(name: impl Into<String>, encoding: impl Into<String>) -> Self {
        let mut column = Self { name: name.into(), encoding: encoding.into(), size: None };
        column.size = column.width();
        column
    }

    /// The type of a column of numbers.
    pub fn number(&self) -> Option<DataType> {
        Some(match self.encoding.as_str() {
            "int8" => DataType::Int8,
            "int16" => DataType::Int16,
            "int32" => DataType::Int32,
            "int" | "int64" => DataType::Int64,
            "uint8" => DataType::UInt8,
            "uint16" => DataType::UInt16,
            "uint32" => DataType::UInt32,
            "uint64" => DataType::UInt64,
            "float16" => DataType::Float16,
            "float32" => DataType::Float32,
            "float64" => DataType::Float64,
            _ => return None,
        })
    }

    /// The bytes of a number.
    fn width(&self) -> Option<u32> {
        self.number()?.primitive_width().and_then(|width| u32::try_from(width).ok())
    }
}

impl FileInfo {
    /// What the index is to say of a file with this content.
    pub(super) fn of(basename: String, bytes: &[u8]) -> Self {
        let hashes = hash::hex(hash::WRITTEN, bytes).map(|hex| (hash::WRITTEN.to_owned(), hex));
        Self { basename, bytes: bytes.len() as u64, hashes: hashes.into_iter().collect() }
    }

    /// Compares the content of a file with its size and with every hash whose algorithm is known; whether there was any.
    ///
    /// # Errors
    /// What differs.
    pub fn check(&self, content: &[u8]) -> Result<bool, String> {
        if content.len() as u64 != self.bytes {
            return Err(format!("has {} bytes, but its index says {}", content.len(), self.bytes));
        }
        let mut compared = false;
        for (algorithm, expected) in &self.hashes {
            match hash::hex(algorithm, content) {
                Some(found) if found != *expected => {
                    return Err(format!("has the {algorithm} {found}, but its index says {expected}"));
                }
                found => compared |= found.is_some(),
            }
        }
        Ok(compared)
    }
}
