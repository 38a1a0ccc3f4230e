//! Writes an MDS folder like `MDSWriter`: shards up to a size limit, each with a hash. The index
//! comes last, so that a folder without index is not finished.

use bytes::Bytes;
use tidemill_io::Location;

use super::hash;
use super::index::{Column, FORMAT, FileInfo, INDEX, Index, ShardConfig, ShardInfo, VERSION};
use crate::error::{Error, Result};

/// How shards are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteOptions {
    /// zstd level, 1 to 22. Without a level, shards are not compressed.
    pub zstd: Option<i32>,
    /// Size limit of a raw shard in bytes, less than 4 GiB.
    pub size_limit: u32,
}

impl Default for WriteOptions {
    /// The defaults of `MDSWriter`: no compression, 64 MiB.
    fn default() -> Self {
        Self { zstd: None, size_limit: 1 << 26 }
    }
}

/// Writes an MDS folder. Memory holds one shard and its compressed form.
#[derive(Debug)]
pub struct MdsWriter {
    location: Location,
    columns: Vec<Column>,
    options: WriteOptions,
    config: ShardConfig,
    /// The configuration as it is stored in each shard.
    config_text: Vec<u8>,
    /// The samples of the current shard, and the end of each.
    samples: Vec<u8>,
    ends: Vec<usize>,
    shards: Vec<ShardInfo>,
}

impl MdsWriter {
    /// Starts a folder with these columns. Sorts them by name.
    ///
    /// # Errors
    /// [`Error::Mds`] if there are shards already, because `StreamingDataset` takes a raw shard
    /// that it finds for the content of the compressed one, whatever the index says;
    /// [`Error::Config`] if the zstd level does not exist.
    pub fn create(location: Location, mut columns: Vec<Column>, options: WriteOptions) -> Result<Self> {
        let is_taken = |key: &String| key == INDEX || (key.starts_with("shard.") && !key.contains('/'));
        if let Some(key) = location.list("")?.into_iter().find(is_taken) {
            let problem = match key == INDEX {
                true => "there is a finished folder already; remove it, or choose another folder",
                false => {
                    "another export did not finish, or is still running; remove its files, or choose another folder"
                }
            };
            return Err(Error::Mds { path: location.uri_of(&key), problem: problem.into() });
        }
        if let Some(level) = options.zstd.filter(|level| !(1..=22).contains(level)) {
            return Err(Error::Config {
                key: "zstd",
                problem: format!("{level} is not a level from 1 to 22"),
            });
        }
        columns.sort_by(|a, b| a.name.cmp(&b.name));
        let config = ShardConfig {
            column_encodings: columns.iter().map(|column| column.encoding.clone()).collect(),
            column_names: columns.iter().map(|column| column.name.clone()).collect(),
            column_sizes: columns.iter().map(|column| column.size).collect(),
            compression: options.zstd.map(|level| format!("zstd:{level}")),
            format: FORMAT.into(),
            hashes: vec![hash::WRITTEN_ALGORITHM.into()],
            size_limit: options.size_limit.into(),
            version: VERSION,
        };
        let config_text = to_json(&location, INDEX, &config)?;
        let (samples, ends, shards) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { location, columns, options, config, config_text, samples, ends, shards })
    }

    /// The columns, in the order of a sample's values.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Appends a sample: its values in the order of [`columns`](Self::columns).
    ///
    /// # Errors
    /// [`Error::Column`] if a value does not have the size of its column, or the sample does not
    /// fit into a shard; a failure of the store.
    pub fn write(&mut self, values: &[&[u8]]) -> Result<()> {
        let variable = self.columns.iter().filter(|column| column.size.is_none()).count();
        let size = 4 * variable + values.iter().map(|value| value.len()).sum::<usize>();
        if !self.ends.is_empty() && self.size_with(size) > self.options.size_limit as usize {
            self.flush()?;
        }
        if values.len() != self.columns.len() || self.size_with(size) > u32::MAX as usize {
            let problem = format!("{} values of {size} bytes do not fit into a shard", values.len());
            return Err(Error::Column { column: "of an MDS sample".into(), problem });
        }
        for (column, value) in self.columns.iter().zip(values) {
            match column.size {
                None => self.samples.extend((value.len() as u32).to_le_bytes()),
                Some(size) if size as usize == value.len() => (),
                Some(size) => {
                    let problem = format!("{} bytes instead of {size}", value.len());
                    return Err(Error::Column { column: column.name.clone(), problem });
                }
            }
        }
        values.iter().for_each(|value| self.samples.extend_from_slice(value));
        self.ends.push(self.samples.len());
        Ok(())
    }

    /// Ends the last shard and writes the index.
    ///
    /// # Errors
    /// A failure of the store.
    pub fn finish(mut self) -> Result<Index> {
        if !self.ends.is_empty() {
            self.flush()?;
        }
        let index = Index { shards: std::mem::take(&mut self.shards), version: VERSION };
        self.write_file(INDEX, to_json(&self.location, INDEX, &index)?.into())?;
        Ok(index)
    }

    /// Writes a file, and checks that no other writer wrote it meanwhile.
    fn write_file(&self, key: &str, bytes: Bytes) -> Result<()> {
        let expected = bytes.clone();
        if self.location.put_if_absent(key, bytes)? || self.location.get(key)? == expected {
            return Ok(());
        }
        let problem = "another export writes into the same folder; give each export its own folder".into();
        Err(Error::Mds { path: self.location.uri_of(key), problem })
    }

    /// Bytes before the samples in a shard with this many samples.
    fn head_bytes(&self, samples: usize) -> usize {
        4 + 4 * (samples + 1) + self.config_text.len()
    }

    /// Bytes of the current shard with one more sample of this size.
    fn size_with(&self, sample: usize) -> usize {
        self.head_bytes(self.ends.len() + 1) + self.samples.len() + sample
    }

    fn flush(&mut self) -> Result<()> {
        let (samples, ends) = (std::mem::take(&mut self.samples), std::mem::take(&mut self.ends));
        let head = self.head_bytes(ends.len());
        let mut raw = Vec::with_capacity(head + samples.len());
        raw.extend((ends.len() as u32).to_le_bytes());
        for end in std::iter::once(0).chain(ends.iter().copied()) {
            raw.extend(((head + end) as u32).to_le_bytes());
        }
        raw.extend_from_slice(&self.config_text);
        raw.extend(samples);

        let name = format!("shard.{:05}.{FORMAT}", self.shards.len());
        let raw_data = FileInfo::from_content(name.clone(), &raw);
        let zip = self.options.zstd.map(|level| self.compress(&raw, &name, level)).transpose()?;
        let zip_data = zip.as_ref().map(|zip| FileInfo::from_content(format!("{name}.zstd"), zip));
        let file = zip_data.as_ref().unwrap_or(&raw_data).basename.clone();
        self.write_file(&file, zip.map_or_else(|| raw.into(), Bytes::from))?;
        self.shards.push(ShardInfo {
            config: self.config.clone(),
            raw_data,
            samples: ends.len() as u32,
            zip_data,
        });
        Ok(())
    }

    fn compress(&self, raw: &[u8], name: &str, level: i32) -> Result<Vec<u8>> {
        let failed =
            |e: std::io::Error| Error::Mds { path: self.location.uri_of(name), problem: e.to_string() };
        // Compressed in one call, because the frame then records its content size, which Python's
        // zstd needs.
        zstd::bulk::compress(raw, level).map_err(failed)
    }
}

fn to_json(location: &Location, key: &str, value: &impl serde::Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|e| Error::Mds { path: location.uri_of(key), problem: e.to_string() })
}
