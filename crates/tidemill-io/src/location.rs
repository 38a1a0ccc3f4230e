//! A folder, local or in a bucket, with blocking operations on the keys below it. All locations share one small
//! tokio runtime; nothing here may be called from inside another. What has been put outlasts a loss of power.

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions};

use crate::durable::{self, Durable};
use crate::error::{Error, Result};
use crate::local::LocalFile;
use crate::runtime::{block_on, runtime};
use crate::store::{self, Limits};
use crate::upload::{PART_BYTES, Upload};
use crate::{uri, whole};

/// Small objects fetched at a time.
const GETS_IN_FLIGHT: usize = 64;

/// A folder of files or objects.
#[derive(Debug, Clone)]
pub struct Location {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    uri: String,
    limits: Limits,
}

impl Location {
    /// Understands a local path or a URI, as [`uri::parse`] does. Nothing is read or made.
    ///
    /// # Errors
    /// [`Error::Uri`] if the scheme is not known or the path is none.
    pub fn open(uri: &str) -> Result<Self> {
        let address = uri::parse(uri)?;
        if address.is_http() {
            let problem =
                "http can only be read, file by file; give a local path, s3://, gs:// or az://".into();
            return Err(Error::Uri { uri: uri.into(), problem });
        }
        let prefix = address.key()?;
        let uri = address.uri().trim_end_matches('/').to_owned();
        Ok(Self { prefix, uri, store: address.store, limits: address.limits })
    }

    pub(crate) fn prefix(&self) -> &Path {
        &self.prefix
    }

    /// Path or URI of the folder, for messages.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// Whether it is a folder of this machine.
    pub fn is_local(&self) -> bool {
        !self.uri.contains("://") || self.uri.starts_with("file://")
    }

    /// Path or URI of the object under `key`, for messages.
    pub fn uri_of(&self, key: &str) -> String {
        format!("{}/{key}", self.uri)
    }

    /// Puts an object of any size, replacing what was there.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub fn put(&self, key: &str, bytes: Bytes) -> Result<()> {
        if bytes.len() > PART_BYTES {
            let mut upload = self.upload(key);
            upload.write(bytes)?;
            return upload.finish().map(|_| ());
        }
        let (path, file) = (self.path(key), self.durable(key));
        self.wait("write", key, async {
            self.store.put(&path, bytes.into()).await?;
            durable::sync(file).await
        })
    }

    /// Puts an object unless there is one: `false` if there was. Of any number of callers at most one gets `true`,
    /// and exactly one if no answer is lost: when a put arrives but its answer does not, the next try finds the
    /// object there and gives `false`. Whoever needs to know looks whose object it is. After an error the object may
    /// or may not be there.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub fn put_if_absent(&self, key: &str, bytes: Bytes) -> Result<bool> {
        if let Some(file) = self.durable(key) {
            return self.wait("write", key, file.create(bytes));
        }
        let path = self.path(key);
        self.wait("write", key, async {
            let mut retries = self.limits.retries();
            loop {
                let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
                match self.store.put_opts(&path, bytes.clone().into(), options).await {
                    Ok(_) => return Ok(true),
                    Err(object_store::Error::AlreadyExists { .. }) => return Ok(false),
                    Err(error) => retries.after(error).await?,
                }
            }
        })
    }

    /// Gets a whole object, a large one by several requests.
    ///
    /// # Errors
    /// [`Error::Storage`], also if it is not there.
    pub fn get(&self, key: &str) -> Result<Bytes> {
        self.wait("read", key, whole::get(self.store.as_ref(), &self.path(key), self.limits.range))
    }

    /// Gets a whole object, or `None` if it is not there.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub fn get_if_present(&self, key: &str) -> Result<Option<Bytes>> {
        match self.get(key) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.is_not_found() && !error.is_bucket_missing() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Gets many small objects, several at a time, in the order of the keys.
    ///
    /// # Errors
    /// [`Error::Storage`] of the first that fails.
    pub fn get_all(&self, keys: &[String]) -> Result<Vec<Bytes>> {
        let gets = futures::stream::iter(keys).map(|key| async move {
            let get = async { self.store.get(&self.path(key)).await?.bytes().await };
            get.await.map_err(|source| self.failure("read", key, source))
        });
        block_on(gets.buffered(GETS_IN_FLIGHT).try_collect())
    }

    /// Gets some bytes of an object.
    ///
    /// # Errors
    /// [`Error::Storage`], also if the object is shorter.
    pub fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes> {
        let path = self.path(key);
        self.wait("read", key, async { self.store.get_range(&path, range).await })
    }

    /// The size of an object in bytes.
    ///
    /// # Errors
    /// [`Error::Storage`], also if it is not there.
    pub fn size(&self, key: &str) -> Result<u64> {
        let path = self.path(key);
        self.wait("read", key, async { Ok(self.store.head(&path).await?.size) })
    }

    /// Gets some bytes of an object piece by piece, as they come, so that whoever takes them need not ask the system for
    /// fresh memory: that costs more than to receive them. All bytes have been taken when it ends well.
    ///
    /// # Errors
    /// [`Error::Storage`], also if the object is shorter.
    pub fn get_pieces(&self, key: &str, range: Range<u64>, mut take: impl FnMut(&[u8])) -> Result<()> {
        let (path, wanted) = (self.path(key), range.end - range.start);
        self.wait("read", key, async {
            let options = GetOptions { range: Some(range.into()), ..GetOptions::default() };
            let mut pieces = self.store.get_opts(&path, options).await?.into_stream();
            let mut taken = 0;
            while let Some(piece) = pieces.try_next().await? {
                taken += piece.len() as u64;
                take(&piece);
            }
            if taken == wanted {
                return Ok(());
            }
            let problem = format!("{taken} bytes came instead of {wanted}");
            Err(object_store::Error::Generic { store: "range", source: problem.into() })
        })
    }

    /// Opens a file, if this [is a local](Self::is_local) folder.
    ///
    /// # Errors
    /// [`Error::Storage`], also if this is no local folder.
    pub fn open_local(&self, key: &str) -> Result<LocalFile> {
        let path = LocalFileSystem::new().path_to_filesystem(&self.path(key));
        LocalFile::open(&path.map_err(|source| self.failure("read", key, source))?, self.uri_of(key))
    }

    /// Keys of all objects below a folder (`""` for all), sorted.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub fn list(&self, folder: &str) -> Result<Vec<String>> {
        Ok(self.entries(folder)?.into_iter().map(|entry| entry.key).collect())
    }

    /// All objects below a folder (`""` for all), by key.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub fn entries(&self, folder: &str) -> Result<Vec<Entry>> {
        let path = self.path(folder);
        let found = self.wait("list", folder, store::list(self.store.as_ref(), &path, &self.limits))?;
        let entry = |meta: &ObjectMeta| {
            let parts = meta.location.prefix_match(&self.prefix)?;
            let key = parts.map(|part| part.as_ref().to_owned()).collect::<Vec<_>>().join("/");
            Some(Entry { key, bytes: meta.size, modified: meta.last_modified.into() })
        };
        let mut entries: Vec<Entry> = found.iter().filter_map(entry).collect();
        entries.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(entries)
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub fn delete(&self, key: &str) -> Result<()> {
        let path = self.path(key);
        self.wait("delete", key, async { self.store.delete(&path).await })
    }

    /// Starts an object that is written piece by piece and does not exist before [`Upload::finish`].
    pub fn upload(&self, key: &str) -> Upload {
        Upload::new(self.store.clone(), self.path(key), self.uri_of(key), self.durable(key))
    }

    /// The file that an object is to be, if this is a local folder: buckets see to what lasts themselves. None for a key
    /// that no file can have, which the store refuses.
    fn durable(&self, key: &str) -> Option<Durable> {
        let path = self.is_local().then(|| LocalFileSystem::new().path_to_filesystem(&self.path(key)));
        path?.ok().map(Durable::new)
    }

    /// A key as it is listed; only what can be none is encoded.
    fn path(&self, key: &str) -> Path {
        let key = Path::parse(key).unwrap_or_else(|_| Path::from(key));
        Path::from_iter(self.prefix.parts().chain(key.parts()))
    }

    fn wait<T>(
        &self,
        action: &'static str,
        key: &str,
        operation: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T> {
        let told = self.limits.telling(action, || self.uri_of(key), operation);
        runtime()?.block_on(told).map_err(|source| self.failure(action, key, source))
    }

    fn failure(&self, action: &'static str, key: &str, source: object_store::Error) -> Error {
        Error::Storage { action, uri: self.uri_of(key), source }
    }
}

/// An object as listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its key.
    pub key: String,
    /// Its size.
    pub bytes: u64,
    /// When it was put, by the store's clock.
    pub modified: SystemTime,
}

impl Entry {
    /// Time since it was put; none if the store's clock is ahead.
    pub fn age(&self) -> Duration {
        self.modified.elapsed().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Checksum;

    #[test]
    fn objects_come_back_under_their_keys() {
        let folder = tempfile::tempdir().unwrap();
        let location = Location::open(folder.path().join("with space/ü").to_str().unwrap()).unwrap();
        assert!(location.list("").unwrap().is_empty());
        location.put("a/b.json", Bytes::from_static(b"hello")).unwrap();
        location.put("c", Bytes::from_static(b"x")).unwrap();
        assert_eq!(location.list("").unwrap(), ["a/b.json", "c"]);
        assert_eq!(location.list("a").unwrap(), ["a/b.json"]);
        assert_eq!(location.get_range("a/b.json", 1..3).unwrap(), "el");
        assert_eq!(location.get_all(&["c".into(), "a/b.json".into()]).unwrap(), ["x", "hello"]);
        assert!(std::path::Path::new(&location.uri_of("a/b.json")).is_file());
        location.delete("c").unwrap();
        assert!(location.get_if_present("c").unwrap().is_none());
        let message = location.get("c").unwrap_err().to_string();
        assert!(message.starts_with("cannot read /") && message.contains("/c: "), "{message}");
    }

    #[test]
    fn only_the_first_put_if_absent_counts() {
        let folder = tempfile::tempdir().unwrap();
        let location = Location::open(&format!("file://{}", folder.path().display())).unwrap();
        let won: Vec<bool> = std::thread::scope(|scope| {
            let put = |i: u8| location.put_if_absent("one", Bytes::from(vec![i])).unwrap();
            let threads: Vec<_> = (0..8).map(|i| scope.spawn(move || put(i))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(won.iter().filter(|won| **won).count(), 1);
        let winner = won.iter().position(|won| *won).unwrap();
        assert_eq!(location.get("one").unwrap()[0] as usize, winner);
    }

    #[test]
    fn an_upload_appears_whole_with_its_checksum() {
        let folder = tempfile::tempdir().unwrap();
        let location = Location::open(folder.path().to_str().unwrap()).unwrap();
        let bytes: Vec<u8> = (0..20_000_000_u32).map(|i| (i % 251) as u8).collect();
        let mut upload = location.upload("big");
        for piece in bytes.chunks(3_000_001) {
            upload.write(Bytes::copy_from_slice(piece)).unwrap();
        }
        assert!(location.get_if_present("big").unwrap().is_none());
        assert_eq!(upload.finish().unwrap(), (20_000_000, Checksum::of(&bytes)));
        assert_eq!(location.get("big").unwrap(), bytes);
    }

    #[test]
    fn unknown_schemes_are_refused_by_name() {
        let message = Location::open("ftp://host/x").unwrap_err().to_string();
        assert!(message.contains("ftp://host/x") && message.contains("local path"), "{message}");
    }
}
