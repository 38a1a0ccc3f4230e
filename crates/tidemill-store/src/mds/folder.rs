//! Finds the MDS shards of a folder. They are those of its `index.json`. If it has none, they are
//! those of all indices below it, because writers on several machines leave a folder each.

use tidemill_io::Location;

use super::index::{INDEX, Index, ShardInfo};
use super::shard::Shard;
use crate::error::{Error, Result};

/// The shards of an MDS folder.
#[derive(Debug, Clone)]
pub struct Folder {
    location: Location,
    /// The shards, by index and in the order of the index.
    pub shards: Vec<ShardLocation>,
}

/// A shard and its location.
#[derive(Debug, Clone)]
pub struct ShardLocation {
    /// Folder of the shard's index: empty, or with a slash at its end.
    prefix: String,
    /// The shard's entry in the index.
    pub info: ShardInfo,
}

impl Folder {
    /// Reads the index or indices of a folder. Leaves out shards without samples.
    ///
    /// # Errors
    /// [`Error::Mds`] if there is no index, no sample, or an index that cannot be read; a failure
    /// of the store.
    pub fn open(uri: &str) -> Result<Self> {
        let location = Location::open(uri)?;
        let mut shards = Vec::new();
        for (key, bytes) in read_indices(&location)? {
            let fail = |problem| Error::Mds { path: location.uri_of(&key), problem };
            let prefix = key.strip_suffix(INDEX).unwrap_or_default().to_owned();
            let index = Index::parse(&bytes).map_err(fail)?;
            let filled = index.shards.into_iter().filter(|info| info.samples > 0);
            shards.extend(filled.map(|info| ShardLocation { prefix: prefix.clone(), info }));
        }
        if shards.is_empty() {
            let problem = format!(
                "there is no {INDEX} in or below it that names a sample; use the folder that an MDSWriter wrote"
            );
            return Err(Error::Mds { path: location.uri().into(), problem });
        }
        Ok(Self { location, shards })
    }

    /// Path or URI of the folder.
    pub fn uri(&self) -> &str {
        self.location.uri()
    }

    /// Paths or URIs of the files that may hold the shard, the compressed one first.
    pub fn files(&self, shard: &ShardLocation) -> Vec<String> {
        shard.info.files().map(|file| self.location.uri_of(&shard.key(&file.basename))).collect()
    }

    /// Reads and checks a shard. Also returns whether any hash was compared.
    ///
    /// # Errors
    /// [`Error::Mds`], which names the file, if the shard is missing or differs from its index; a
    /// failure of the store.
    pub fn read(&self, shard: &ShardLocation) -> Result<(Shard, bool)> {
        for file in shard.info.files() {
            let key = shard.key(&file.basename);
            let Some(content) = self.location.get_if_present(&key)? else { continue };
            let fail = |problem| Error::Mds { path: self.location.uri_of(&key), problem };
            return Shard::read(&shard.info, file, content).map_err(fail);
        }
        Err(self.missing_error(shard))
    }

    /// The error for a missing shard.
    pub fn missing_error(&self, shard: &ShardLocation) -> Error {
        let problem = format!("is missing, but its {INDEX} names it; fetch it, or remove it from the index");
        Error::Mds { path: self.files(shard).swap_remove(0), problem }
    }
}

impl ShardLocation {
    fn key(&self, basename: &str) -> String {
        format!("{}{basename}", self.prefix)
    }
}

/// The keys and contents of the indices that apply.
fn read_indices(location: &Location) -> Result<Vec<(String, bytes::Bytes)>> {
    if let Some(bytes) = location.get_if_present(INDEX)? {
        return Ok(vec![(INDEX.into(), bytes)]);
    }
    let below = format!("/{INDEX}");
    let keys: Vec<String> = location.list("")?.into_iter().filter(|key| key.ends_with(&below)).collect();
    let objects = location.get_all(&keys)?;
    Ok(keys.into_iter().zip(objects).collect())
}
