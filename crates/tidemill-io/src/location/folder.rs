//! The folder itself: its store, its URI, and the paths of its keys.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;

use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::path::Path;

use crate::error::{Error, Result};
use crate::runtime::runtime;
use crate::store::Limits;
use crate::uri;

/// A folder of files or objects.
#[derive(Debug, Clone)]
pub struct Location {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) prefix: Path,
    uri: String,
    pub(super) limits: Limits,
}

impl Location {
    /// Opens a local path or a URI, as [`uri::parse`] parses it. Reads and creates nothing.
    ///
    /// # Errors
    /// [`Error::Uri`] if the scheme is unknown or the path is invalid.
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

    /// The path or URI of the folder, for messages.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// Whether this is a local folder.
    pub fn is_local(&self) -> bool {
        !self.uri.contains("://") || self.uri.starts_with("file://")
    }

    /// The path or URI of the object under `key`, for messages.
    pub fn uri_of(&self, key: &str) -> String {
        format!("{}/{key}", self.uri)
    }

    /// The store's path for a key. A key that was listed is used as it is; characters that a path
    /// cannot contain are encoded.
    pub(super) fn path(&self, key: &str) -> Path {
        let key = Path::parse(key).unwrap_or_else(|_| Path::from(key));
        Path::from_iter(self.prefix.parts().chain(key.parts()))
    }

    /// The local file of a key; `None` in a bucket, and for a key that cannot be a file name.
    pub(super) fn local_path(&self, key: &str) -> Option<PathBuf> {
        let path = self.is_local().then(|| LocalFileSystem::new().path_to_filesystem(&self.path(key)));
        path?.ok()
    }

    /// Blocks until an operation on the object under `key` is done. Warns if it is slow.
    pub(super) fn wait<T>(
        &self,
        action: &'static str,
        key: &str,
        operation: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T> {
        let operation = self.limits.warn_if_slow(action, || self.uri_of(key), operation);
        runtime()?.block_on(operation).map_err(|source| self.storage_error(action, key, source))
    }

    pub(super) fn storage_error(
        &self,
        action: &'static str,
        key: &str,
        source: object_store::Error,
    ) -> Error {
        Error::Storage { action, uri: self.uri_of(key), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_schemes_are_refused_by_name() {
        let message = Location::open("ftp://host/x").unwrap_err().to_string();
        assert!(message.contains("ftp://host/x") && message.contains("local path"), "{message}");
    }
}
