//! The index of an MDS folder, `index.json`: its shards with their columns, sizes and hashes.

use std::collections::{BTreeMap, BTreeSet};

use arrow::datatypes::DataType;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::hash;

/// File name of the index.
pub const INDEX: &str = "index.json";

/// The version of index and shards.
pub(super) const VERSION: u32 = 2;

/// The only shard format that can be read.
pub(super) const FORMAT: &str = "mds";

/// The index of a folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Index {
    /// The shards, in the order of their samples.
    pub shards: Vec<ShardInfo>,
    /// Version of the index, 2.
    pub version: u32,
}

/// The index entry of a shard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShardInfo {
    /// How the shard was written.
    #[serde(flatten)]
    pub config: ShardConfig,
    /// The shard before compression.
    pub raw_data: FileInfo,
    /// Number of samples.
    pub samples: u32,
    /// The compressed file, if there is compression.
    pub zip_data: Option<FileInfo>,
}

/// How a shard was written. The shard itself holds this too, as JSON with the keys in this order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShardConfig {
    /// The encoding of each column.
    pub column_encodings: Vec<String>,
    /// The columns, by name.
    pub column_names: Vec<String>,
    /// The size in bytes of each column's values, where it is fixed.
    pub column_sizes: Vec<Option<u32>>,
    /// The compression algorithm, with or without its level, for example `zstd:7`.
    pub compression: Option<String>,
    /// The format, `mds`.
    pub format: String,
    /// The algorithms of the file hashes.
    pub hashes: Vec<String>,
    /// The size limit of a raw shard.
    pub size_limit: Value,
    /// Version of the shard, 2.
    pub version: u32,
}

/// A file of a shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileInfo {
    /// Path relative to the index.
    pub basename: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Hashes by algorithm, as hexadecimal digits.
    pub hashes: BTreeMap<String, String>,
}

/// A column of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Name of the column.
    pub name: String,
    /// Encoding of the values: `bytes`, `str`, `int32`, ...
    pub encoding: String,
    /// Size of a value in bytes, if it is fixed.
    pub size: Option<u32>,
}

impl Index {
    /// Parses an index and checks that its shards can be read.
    ///
    /// # Errors
    /// A message that says what is wrong with the index.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let index: Self = serde_json::from_slice(bytes)
            .map_err(|e| format!("is not an index of MDS shards in version {VERSION}: {e}"))?;
        if index.version != VERSION {
            return Err(format!("has version {}; only version {VERSION} is supported", index.version));
        }
        for (i, shard) in index.shards.iter().enumerate() {
            shard.find_problem().map_or(Ok(()), |problem| Err(format!("shard {i}: {problem}")))?;
        }
        Ok(index)
    }
}

impl ShardInfo {
    /// The columns, in the order of a sample's values.
    pub fn columns(&self) -> Vec<Column> {
        let ShardConfig { column_names, column_encodings, column_sizes, .. } = &self.config;
        let columns = column_names.iter().zip(column_encodings).zip(column_sizes);
        // A size of 0 means that the size is not fixed.
        columns
            .map(|((name, encoding), size)| Column {
                name: name.clone(),
                encoding: encoding.clone(),
                size: size.filter(|size| *size > 0),
            })
            .collect()
    }

    /// The files that may hold the shard, the compressed one first.
    pub fn files(&self) -> impl Iterator<Item = &FileInfo> {
        self.zip_data.iter().chain([&self.raw_data])
    }

    /// Describes why the shard cannot be read, or returns `None` if it can.
    fn find_problem(&self) -> Option<String> {
        let ShardConfig {
            column_names, column_encodings, column_sizes, compression, format, version, ..
        } = &self.config;
        if (format.as_str(), *version) != (FORMAT, VERSION) {
            return Some(format!("its format is {format} {version}; only {FORMAT} {VERSION} is supported"));
        }
        match (compression.as_deref(), &self.zip_data) {
            (None, None) => (),
            (Some(name), Some(_)) if name == "zstd" || name.starts_with("zstd:") => (),
            (Some(name), Some(_)) => {
                return Some(format!(
                    "its compression is {name}; only zstd is supported; decompress the shards, or write them again"
                ));
            }
            _ => {
                return Some(
                    "it has compression without a compressed file, or a compressed file without compression"
                        .into(),
                );
            }
        }
        if column_names.len() != column_encodings.len() || column_names.len() != column_sizes.len() {
            return Some("its columns differ in their number of names, encodings and sizes".into());
        }
        if column_names.iter().collect::<BTreeSet<_>>().len() != column_names.len() {
            return Some("two of its columns have the same name".into());
        }
        let columns = self.columns();
        if let Some(column) =
            columns.iter().find(|column| column.number_bytes().is_some_and(|w| column.size != Some(w)))
        {
            let Column { name, encoding, size } = column;
            return Some(format!("column `{name}` is {encoding} of {size:?} bytes"));
        }
        // Offsets in a shard are u32.
        if self.raw_data.bytes > u64::from(u32::MAX) {
            return Some(format!(
                "{} bytes are more than a shard may have; the limit is 4 GiB",
                self.raw_data.bytes
            ));
        }
        let mut paths = self.files().map(|file| file.basename.as_str());
        let stray = paths.find(|path| path.split('/').any(|part| matches!(part, "" | "." | "..")));
        stray.map(|path| format!("`{path}` is not a path below the index"))
    }
}

impl Column {
    /// A column with the size that its encoding requires.
    pub fn new(name: impl Into<String>, encoding: impl Into<String>) -> Self {
        let mut column = Self { name: name.into(), encoding: encoding.into(), size: None };
        column.size = column.number_bytes();
        column
    }

    /// The Arrow type of a numeric column, or `None` if the column is not numeric.
    pub fn number_type(&self) -> Option<DataType> {
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

    /// Size of a number in bytes.
    fn number_bytes(&self) -> Option<u32> {
        self.number_type()?.primitive_width().and_then(|width| u32::try_from(width).ok())
    }
}

impl FileInfo {
    /// The index entry of a file with this content.
    pub(super) fn from_content(basename: String, bytes: &[u8]) -> Self {
        let hashes = hash::compute_hex(hash::WRITTEN_ALGORITHM, bytes)
            .map(|hex| (hash::WRITTEN_ALGORITHM.to_owned(), hex));
        Self { basename, bytes: bytes.len() as u64, hashes: hashes.into_iter().collect() }
    }

    /// Compares the content of a file with its size and with every hash whose algorithm is
    /// supported. Returns whether any hash was compared.
    ///
    /// # Errors
    /// A message that says what differs.
    pub fn check(&self, content: &[u8]) -> Result<bool, String> {
        if content.len() as u64 != self.bytes {
            return Err(format!("has {} bytes, but its index says {}", content.len(), self.bytes));
        }
        let mut compared = false;
        for (algorithm, expected) in &self.hashes {
            match hash::compute_hex(algorithm, content) {
                Some(found) if found != *expected => {
                    return Err(format!("has the {algorithm} {found}, but its index says {expected}"));
                }
                found => compared |= found.is_some(),
            }
        }
        Ok(compared)
    }
}
