//! From what a user writes (a path, `file://`, `s3://`, with globs or without) to objects in a store.
//! Local files keep their absolute path as their URI, because that is what people read in messages.

use std::collections::HashSet;
use std::ops::Range;
use std::path::{Component, Path as FsPath, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use glob::{MatchOptions, Pattern};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt};
use url::Url;

use crate::error::{Error, Result};
use crate::http;
use crate::store::{self, Connection, Limits, connection, root_of};

/// `*` and `?` stay within one path segment, as in a shell; `**` crosses them.
const GLOB: MatchOptions =
    MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: true };

/// The characters that make a path a glob.
const WILD: [char; 3] = ['*', '?', '['];

/// Ranges of a remote object with at most so many bytes between them are fetched by one request: they take about as
/// long as another request would.
const GAP: u64 = 64 << 10;

/// What a path or URI names in a store; it may still be a glob.
#[derive(Debug, Clone)]
pub struct Address {
    /// The store that holds it.
    pub store: Arc<dyn ObjectStore>,
    /// What precedes an object's path in its URI: `/` for local files, `s3://bucket/` and the like otherwise.
    pub root: String,
    /// The path below the root, as written. In an `http(s)://` URL it is percent-encoded, elsewhere it is the key.
    pub path: String,
    pub(crate) limits: Limits,
}

/// Understands a path or URI. Nothing is read or made.
///
/// # Errors
/// [`Error::Uri`] if the scheme is unknown or the path is no path.
pub fn parse(uri: &str) -> Result<Address> {
    let fail = |problem: String| Error::Uri { uri: uri.into(), problem };
    let Some((scheme, _)) = uri.split_once("://") else { return local(uri) };
    if scheme == "file" {
        let url = Url::parse(uri).map_err(|e| fail(e.to_string()))?;
        if url.fragment().is_some() || url.query().is_some() {
            return Err(fail("in a URI # and ? end the path: write %23, %3F, or a plain path".into()));
        }
        let path = url.to_file_path().map_err(|()| fail("is no absolute local path".into()))?;
        return local(&path.to_string_lossy());
    }
    let (root, path) = root_of(uri)?;
    if http::is_url(uri) && uri.contains(WILD) {
        let problem = "over http a URL names one file: globs and query strings are not supported";
        return Err(fail(problem.into()));
    }
    if http::is_url(uri) && root.contains('@') {
        let problem = "a name and password are not sent over http; use the store's own scheme";
        return Err(fail(problem.into()));
    }
    let Connection { store, limits } = connection(&root).map_err(|error| match error {
        Error::Uri { problem, .. } => fail(problem),
        error => error,
    })?;
    Ok(Address { store, root, path, limits })
}

fn local(path: &str) -> Result<Address> {
    let absolute = std::path::absolute(FsPath::new(path))
        .map_err(|e| Error::Uri { uri: path.into(), problem: e.to_string() })?;
    let mut folded = PathBuf::new();
    for component in absolute.components() {
        match component {
            Component::ParentDir => _ = folded.pop(),
            other => folded.push(other),
        }
    }
    let path = folded.to_string_lossy().trim_start_matches('/').to_owned();
    let store = Arc::new(LocalFileSystem::new());
    Ok(Address { store, root: "/".into(), path, limits: Limits::default() })
}

impl Address {
    /// Whether this is a file of this machine.
    pub fn is_local(&self) -> bool {
        self.root == "/"
    }

    /// Whether this is an explicit URL, which can be neither listed nor written.
    pub(crate) fn is_http(&self) -> bool {
        self.root.starts_with("http")
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
        self.key_of(&self.path)
    }

    /// The name of a listed file below this address: what follows the part before the first glob or below the
    /// directory, or the file's own name if the address is that of the file. It stays the same if all is moved.
    pub fn relative<'a>(&self, uri: &'a str) -> &'a str {
        let folder = format!("{}{}", self.root, self.fixed());
        match uri.strip_prefix(folder.trim_end_matches('/')) {
            Some(rest) if !rest.is_empty() => rest.trim_start_matches('/'),
            _ => uri.rsplit('/').next().unwrap_or(uri),
        }
    }

    /// Every object that the path matches as a glob, or names, or has below it as a directory: URI and metadata,
    /// ordered by URI. What no glob matches may be a name that looks like one, as in a shell.
    ///
    /// # Errors
    /// [`Error::Uri`] if nothing is found, [`Error::Storage`] if the store refuses.
    pub async fn expand(&self) -> Result<Vec<(String, ObjectMeta)>> {
        self.limits.telling("list", || self.uri(), self.found()).await
    }

    async fn found(&self) -> Result<Vec<(String, ObjectMeta)>> {
        let mut found = if self.is_glob() { self.matching().await? } else { Vec::new() };
        if found.is_empty() {
            found = match self.head().await? {
                Some(meta) => vec![(self.uri(), meta)],
                None => self.list(self.path.trim_end_matches('/')).await?,
            };
        }
        if found.is_empty() {
            let problem = "no such file or directory, and nothing matches it; check the path".into();
            return Err(Error::Uri { uri: self.uri(), problem });
        }
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(found)
    }

    /// Gets some ranges of the object, in their order; of a remote one only if it still has the entity tag, if one is
    /// given.
    ///
    /// # Errors
    /// [`Error::Storage`], which [is a change](Error::is_changed) if it has another.
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
            object_store::coalesce_ranges(ranges, get, GAP).await
        };
        bytes.map_err(|source| self.failure("read", source))
    }

    async fn matching(&self) -> Result<Vec<(String, ObjectMeta)>> {
        let pattern = Pattern::new(&self.uri())
            .map_err(|e| Error::Uri { uri: self.uri(), problem: format!("is no valid glob: {e}") })?;
        let mut below = self.list(&self.fixed()).await?;
        below.retain(|(uri, _)| pattern.matches_with(uri, GLOB));
        Ok(below)
    }

    fn is_glob(&self) -> bool {
        self.path.contains(WILD)
    }

    /// The path up to its first segment with a glob.
    fn fixed(&self) -> String {
        self.path.split('/').take_while(|part| !part.contains(WILD)).collect::<Vec<_>>().join("/")
    }

    fn key_of(&self, path: &str) -> Result<Path> {
        let key = if self.is_http() { Path::from_url_path(path) } else { Path::parse(path) };
        key.map_err(|e| Error::Uri { uri: format!("{}{path}", self.root), problem: e.to_string() })
    }

    /// The metadata of the one object that the path names, if there is such an object.
    async fn head(&self) -> Result<Option<ObjectMeta>> {
        let key = self.key()?;
        if key.as_ref().is_empty() {
            return Ok(None);
        }
        match self.store.head(&key).await {
            Ok(meta) => Ok(Some(meta)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            // A directory is no object.
            Err(_) if self.is_local() => Ok(None),
            Err(source) => Err(self.failure("read", source)),
        }
    }

    async fn list(&self, directory: &str) -> Result<Vec<(String, ObjectMeta)>> {
        if self.is_http() {
            return Ok(Vec::new());
        }
        let key = self.key_of(directory)?;
        let metas = store::list(self.store.as_ref(), &key, &self.limits).await.map_err(|source| {
            let uri = format!("{}{directory}", self.root);
            Error::Storage { action: "list", uri, source }
        })?;
        let metas = if self.is_local() { metas } else { without_markers(metas, &key) };
        Ok(metas.into_iter().map(|meta| (format!("{}{}", self.root, meta.location), meta)).collect())
    }

    fn failure(&self, action: &'static str, source: object_store::Error) -> Error {
        Error::Storage { action, uri: self.uri(), source }
    }
}

/// What was listed in a folder, without the empty objects by which consoles show a folder: they are named like it, or
/// like a folder below that has something in it.
fn without_markers(mut listed: Vec<ObjectMeta>, folder: &Path) -> Vec<ObjectMeta> {
    if listed.iter().all(|meta| meta.size > 0) {
        return listed;
    }
    let folders_of = |meta: &ObjectMeta| {
        let name = meta.location.as_ref();
        name.match_indices('/').map(|(end, _)| name[..end].to_owned()).collect::<Vec<_>>()
    };
    let mut folders: HashSet<String> = listed.iter().flat_map(folders_of).collect();
    folders.insert(folder.to_string());
    listed.retain(|meta| meta.size > 0 || !folders.contains(meta.location.as_ref()));
    listed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_relative_to_what_is_fixed() {
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
    fn a_name_may_look_like_a_glob() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        for name in ["a1/x", "b[1]/x", "c[1]/x", "c1/x"] {
            std::fs::create_dir_all(path(name)).unwrap();
            std::fs::write(path(&format!("{name}/file")), name).unwrap();
        }
        let found = |uri: &str| crate::runtime::block_on(parse(&path(uri)).unwrap().expand()).unwrap();
        for (uri, file) in [("a[1]/x/*", "a1/x/file"), ("b[1]/x", "b[1]/x/file"), ("c[1]/x/*", "c1/x/file")] {
            let files: Vec<String> = found(uri).into_iter().map(|(uri, _)| uri).collect();
            assert_eq!(files, [path(file)], "{uri}");
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
