//! Writes and deletes objects.

use bytes::Bytes;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions};

use crate::error::Result;
use crate::local::{DurableFile, sync_if_local};
use crate::location::folder::Location;
use crate::location::upload::{PART_BYTES, Upload};

impl Location {
    /// Writes an object of any size, and replaces an existing one.
    ///
    /// # Errors
    /// [`crate::Error::Storage`].
    pub fn put(&self, key: &str, bytes: Bytes) -> Result<()> {
        if bytes.len() > PART_BYTES {
            let mut upload = self.upload(key);
            upload.write(bytes)?;
            return upload.finish().map(|_| ());
        }
        let (path, file) = (self.path(key), self.durable_file(key));
        self.wait("write", key, async {
            self.store.put(&path, bytes.into()).await?;
            sync_if_local(file).await
        })
    }

    /// Writes an object unless it exists; returns `false` if it exists.
    ///
    /// Of any number of concurrent callers at most one gets `true`, and exactly one if no answer is
    /// lost. If a put arrives but its answer is lost, the retry finds the object and returns
    /// `false`. A caller who needs certainty must read the object to see whose it is. After an
    /// error the object may exist or not.
    ///
    /// # Errors
    /// [`crate::Error::Storage`].
    pub fn put_if_absent(&self, key: &str, bytes: Bytes) -> Result<bool> {
        if let Some(file) = self.durable_file(key) {
            return self.wait("write", key, file.create_if_absent(bytes));
        }
        let path = self.path(key);
        self.wait("write", key, async {
            let mut retries = self.limits.start_retries();
            loop {
                let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
                match self.store.put_opts(&path, bytes.clone().into(), options).await {
                    Ok(_) => return Ok(true),
                    Err(object_store::Error::AlreadyExists { .. }) => return Ok(false),
                    Err(error) => retries.wait_or_fail(error).await?,
                }
            }
        })
    }

    /// Starts an object that is written in pieces. It does not exist before [`Upload::finish`].
    pub fn upload(&self, key: &str) -> Upload {
        Upload::new(self.store.clone(), self.path(key), self.uri_of(key), self.durable_file(key))
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// [`crate::Error::Storage`].
    pub fn delete(&self, key: &str) -> Result<()> {
        let path = self.path(key);
        self.wait("delete", key, async { self.store.delete(&path).await })
    }

    /// The file to sync after a write; `None` in a bucket, which is durable by itself, and for a
    /// key that cannot be a file name, which the store refuses.
    fn durable_file(&self, key: &str) -> Option<DurableFile> {
        self.local_path(key).map(DurableFile::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Checksum;

    #[test]
    fn objects_are_read_back_under_their_keys() {
        let folder = tempfile::tempdir().unwrap();
        let location = Location::open(folder.path().join("with space/ü").to_str().unwrap()).unwrap();
        assert!(location.list("").unwrap().is_empty());
        location.put("a/b.json", Bytes::from_static(b"hello")).unwrap();
        location.put("c", Bytes::from_static(b"x")).unwrap();
        assert_eq!(location.list("").unwrap(), ["a/b.json", "c"]);
        assert_eq!(location.list("a").unwrap(), ["a/b.json"]);
        assert_eq!(
            (location.list_names("").unwrap(), location.list_names("a").unwrap()),
            (vec!["a".into(), "c".into()], vec!["b.json".to_string()])
        );
        assert_eq!(location.get_range("a/b.json", 1..3).unwrap(), "el");
        assert_eq!(location.get_all(&["c".into(), "a/b.json".into()]).unwrap(), ["x", "hello"]);
        assert!(std::path::Path::new(&location.uri_of("a/b.json")).is_file());
        location.delete("c").unwrap();
        assert!(location.get_if_present("c").unwrap().is_none());
        let message = location.get("c").unwrap_err().to_string();
        assert!(message.starts_with("cannot read /") && message.contains("/c: "), "{message}");
    }

    #[test]
    fn exactly_one_concurrent_put_if_absent_succeeds() {
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
        assert_eq!(upload.finish().unwrap(), (20_000_000, Checksum::compute(&bytes)));
        assert_eq!(location.get("big").unwrap(), bytes);
    }
}
