//! Reads objects: whole, by range, or many at once.

use std::ops::Range;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use object_store::local::LocalFileSystem;
use object_store::{GetOptions, ObjectStoreExt};

use crate::error::Result;
use crate::local::LocalFile;
use crate::location::folder::Location;
use crate::location::whole_object::get_whole_object;
use crate::runtime::block_on;

/// Concurrent requests of [`Location::get_all`].
const CONCURRENT_GETS: usize = 64;

impl Location {
    /// Gets a whole object; a large one with several requests.
    ///
    /// # Errors
    /// [`crate::Error::Storage`], also if it does not exist.
    pub fn get(&self, key: &str) -> Result<Bytes> {
        let path = self.path(key);
        self.wait("read", key, get_whole_object(self.store.as_ref(), &path, self.limits.range_bytes))
    }

    /// Gets a whole object, or `None` if it does not exist.
    ///
    /// # Errors
    /// [`crate::Error::Storage`], also if the bucket does not exist.
    pub fn get_if_present(&self, key: &str) -> Result<Option<Bytes>> {
        match self.get(key) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.is_not_found() && !error.is_bucket_missing() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Gets many small objects concurrently, and returns them in the order of the keys.
    ///
    /// # Errors
    /// [`crate::Error::Storage`] of the first object that fails.
    pub fn get_all(&self, keys: &[String]) -> Result<Vec<Bytes>> {
        let gets = futures::stream::iter(keys).map(|key| async move {
            let get = async { self.store.get(&self.path(key)).await?.bytes().await };
            get.await.map_err(|source| self.storage_error("read", key, source))
        });
        block_on(gets.buffered(CONCURRENT_GETS).try_collect())
    }

    /// Gets a range of an object.
    ///
    /// # Errors
    /// [`crate::Error::Storage`], also if the object is shorter.
    pub fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        let path = self.path(key);
        self.wait("read", key, async { self.store.get_range(&path, range).await })
    }

    /// Gets a range of an object and passes it to `consume` in chunks, as they arrive. The caller
    /// can then reuse its buffer: allocating fresh memory costs more than receiving the bytes. If
    /// the call succeeds, `consume` got the whole range.
    ///
    /// # Errors
    /// [`crate::Error::Storage`], also if the object is shorter.
    pub fn stream_range(&self, key: &str, range: Range<u64>, mut consume: impl FnMut(&[u8])) -> Result<()> {
        let (path, wanted) = (self.path(key), range.end - range.start);
        self.wait("read", key, async {
            let options = GetOptions { range: Some(range.into()), ..GetOptions::default() };
            let mut chunks = self.store.get_opts(&path, options).await?.into_stream();
            let mut received = 0;
            while let Some(chunk) = chunks.try_next().await? {
                received += chunk.len() as u64;
                consume(&chunk);
            }
            if received == wanted {
                return Ok(());
            }
            let problem = format!("{received} bytes came instead of {wanted}");
            Err(object_store::Error::Generic { store: "range", source: problem.into() })
        })
    }

    /// The size of an object in bytes.
    ///
    /// # Errors
    /// [`crate::Error::Storage`], also if it does not exist.
    pub fn size(&self, key: &str) -> Result<u64> {
        let path = self.path(key);
        self.wait("read", key, async { Ok(self.store.head(&path).await?.size) })
    }

    /// Opens a file of a [local](Self::is_local) folder.
    ///
    /// # Errors
    /// [`crate::Error::Storage`], also if this is not a local folder.
    pub fn open_local(&self, key: &str) -> Result<LocalFile> {
        let path = LocalFileSystem::new().path_to_filesystem(&self.path(key));
        LocalFile::open(&path.map_err(|source| self.storage_error("read", key, source))?, self.uri_of(key))
    }
}
