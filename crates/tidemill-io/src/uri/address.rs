//! The address of a file, folder or glob. A local file's URI is its absolute path, because messages
//! should show what people type.

use std::ops::Range;
use std::path::{Component, Path as FsPath, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{GetOptions, ObjectStore};
use url::Url;

use crate::error::{Error, Result};
use crate::redact::is_http_url;
use crate::store::{Connection, Limits, get_or_open_connection, split_root};

/// The characters that make a path a glob.
const WILDCARDS: [char; 3] = ['*', '?', '['];

/// Ranges of a remote object with at most this many bytes between them are fetched by one request,
/// because those bytes take about as long as another request.
const MAX_COALESCED_GAP: u64 = 64 << 10;

/// What a path or URI names in a store; it may be a glob.
#[derive(Debug, Clone)]
pub struct Address {
    /// The store that holds it.
    pub store: Arc<dyn ObjectStore>,
    /// What precedes an object's path in its URI: `/` for local files, otherwise `s3://bucket/` or
    /// similar.
    pub root: String,
    /// The path below the root, as written. In an `http(s)://` URL it is percent-encoded; elsewhere
    /// it is the key.
    pub path: String,
    pub(crate) limits: Limits,
}

/// Parses a path or URI. Reads and creates nothing.
///
/// # Errors
/// [`Error::Uri`] if the scheme is unknown or the path is invalid.
pub fn parse(uri: &str) -> Result<Address> {
    let fail = |problem: String| Error::Uri { uri: uri.into(), problem };
    let Some((scheme, _)) = uri.split_once("://") else { return parse_local_path(uri) };
    if scheme == "file" {
        let url = Url::parse(uri).map_err(|e| fail(e.to_string()))?;
        if url.fragment().is_some() || url.query().is_some() {
            return Err(fail("in a URI # and ? end the path: write %23, %3F, or a plain path".into()));
        }
        let path = url.to_file_path().map_err(|()| fail("is no absolute local path".into()))?;
        return parse_local_path(&path.to_string_lossy());
    }
    let (root, path) = split_root(uri)?;
    if is_http_url(uri) && uri.contains(WILDCARDS) {
        let problem = "over http a URL names one file: globs and query strings are not supported";
        return Err(fail(problem.into()));
    }
    if is_http_url(uri) && root.contains('@') {
        let problem = "a name and password are not sent over http; use the store's own scheme";
        return Err(fail(problem.into()));
    }
    let Connection { store, limits } = get_or_open_connection(&root).map_err(|error| match error {
        Error::Uri { problem, .. } => fail(problem),
        error => error,
    })?;
    Ok(Address { store, root, path, limits })
}

/// Makes a local path absolute, without `..`.
fn parse_local_path(path: &str) -> Result<Address> {
    let absolute = std::path::absolute(FsPath::new(path))
        .map_err(|e| Error::Uri { uri: path.into(), problem: e.to_string() })?;
    let mut normalized = PathBuf::new();
    for component in absolute.components() {
        match component {
            Component::ParentDir => _ = normalized.pop(),
            other => normalized.push(other),
        }
    }
    let path = normalized.to_string_lossy().trim_start_matches('/').to_owned();
    let store = Arc::new(LocalFileSystem::new());
    Ok(Address { store, root: "/".into(), path, limits: Limits::default() })
}

impl Address {
    /// Whether this is a local path.
    pub fn is_local(&self) -> bool {
        self.root == "/"
    }

    /// Whether this is an `http(s)` URL, which can be neither listed nor written.
    pub(crate) fn is_http(&self) -> bool {
        self.root.starts_with("http")
    }

    /// Whether the path contains wildcards.
    pub(super) fn is_glob(&self) -> bool {
        self.path.contains(WILDCARDS)
    }

    /// The path or URI.
    pub fn uri(&self) -> String {
        format!("{}{}", self.root, self.path)
    }

    /// The path as a key of the store.
    ///
    /// # Errors
    /// [`Error::Uri`] if a segment is empty, `.` or `..`.
    pub fn key(&self) -> Result<Path> {
        self.parse_key(&self.path)
    }

    pub(super) fn parse_key(&self, path: &str) -> Result<Path> {
        let key = if self.is_http() { Path::from_url_path(path) } else { Path::parse(path) };
        key.map_err(|e| Error::Uri { uri: format!("{}{path}", self.root), problem: e.to_string() })
    }

    /// The path up to its first segment with a wildcard.
    pub(super) fn fixed_prefix(&self) -> String {
        self.path.split('/').take_while(|part| !part.contains(WILDCARDS)).collect::<Vec<_>>().join("/")
    }

    /// The name of a listed file relative to this address: the path below the folder, or below the
    /// part before the first wildcard. If the address names a file, its file name. The name stays
    /// the same if the whole folder is moved.
    pub fn relative<'a>(&self, uri: &'a str) -> &'a str {
        let folder = format!("{}{}", self.root, self.fixed_prefix());
        match uri.strip_prefix(folder.trim_end_matches('/')) {
            Some(rest) if !rest.is_empty() => rest.trim_start_matches('/'),
            _ => uri.rsplit('/').next().unwrap_or(uri),
        }
    }

    /// Reads one range of the object, whole. `e_tag` as for [`get_ranges`](Self::get_ranges).
    ///
    /// # Errors
    /// As for [`get_ranges`](Self::get_ranges).
    pub async fn get_range(&self, range: Range<u64>, e_tag: Option<&str>) -> Result<Bytes> {
        let bytes = self.get_ranges(std::slice::from_ref(&range), e_tag).await?;
        Ok(bytes.into_iter().next().unwrap_or_default())
    }

    /// Reads several ranges of the object, and returns them in the same order. With `e_tag`, a
    /// remote object must still have this entity tag.
    ///
    /// # Errors
    /// [`Error::Storage`]; [`Error::is_changed`] is true if the object has another entity tag.
    pub async fn get_ranges(&self, ranges: &[Range<u64>], e_tag: Option<&str>) -> Result<Vec<Bytes>> {
        let key = self.key()?;
        let bytes = if self.is_local() {
            self.store.get_ranges(&key, ranges).await
        } else {
            let get = async |range: Range<u64>| {
                let (range, if_match) = (Some(range.into()), e_tag.map(str::to_owned));
                let options = GetOptions { range, if_match, ..GetOptions::default() };
                self.store.get_opts(&key, options).await?.bytes().await
            };
            object_store::coalesce_ranges(ranges, get, MAX_COALESCED_GAP).await
        };
        bytes.map_err(|source| self.storage_error("read", source))
    }

    pub(super) fn storage_error(&self, action: &'static str, source: object_store::Error) -> Error {
        Error::Storage { action, uri: self.uri(), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_relative_to_the_folder_before_the_first_wildcard() {
        let cases = [
            ("/data/a/*.parquet", "/data/a/x.parquet", "x.parquet"),
            ("/data/**/*.parquet", "/data/a/b/x.parquet", "a/b/x.parquet"),
            ("/data/part-*/x.tar", "/data/part-1/x.tar", "part-1/x.tar"),
            ("/data/a", "/data/a/b/x.parquet", "b/x.parquet"),
            ("/data/a/", "/data/a/b/x.parquet", "b/x.parquet"),
            ("/data/a/x.parquet", "/data/a/x.parquet", "x.parquet"),
            ("/*.parquet", "/x.parquet", "x.parquet"),
        ];
        for (uri, file, name) in cases {
            assert_eq!(parse(uri).unwrap().relative(file), name, "{uri}");
        }
    }

    #[test]
    fn file_uris_are_percent_encoded() {
        assert_eq!(parse("file:///data/a%23%3F.parquet").unwrap().path, "data/a#?.parquet");
        for uri in ["file:///data/a#1.parquet", "file:///data/part-?.parquet"] {
            let message = parse(uri).unwrap_err().to_string();
            assert!(message.contains(uri) && message.contains("%23, %3F, or a plain path"), "{message}");
        }
    }

    #[test]
    fn http_urls_name_one_file() {
        let address = parse("https://host/a%20b/x.parquet").unwrap();
        assert_eq!(address.key().unwrap().as_ref(), "a b/x.parquet");
        for uri in ["https://host/*.parquet", "http://host/x.parquet?token=1"] {
            assert!(parse(uri).unwrap_err().to_string().contains("names one file"), "{uri}");
        }
        let message = parse("https://user:word@host/x.parquet").unwrap_err().to_string();
        assert!(message.starts_with("`https://host/x.parquet`: a name and password"), "{message}");
    }
}
