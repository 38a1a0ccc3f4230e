//! From what a user writes (a path, `file://`, `s3://`, with globs or without) to objects in a store.
//! Local files keep their absolute path as their URI, because that is what people read in messages.

use std::path::{Component, Path as FsPath, PathBuf};
use std::sync::Arc;

use futures::TryStreamExt;
use glob::{MatchOptions, Pattern};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use url::Url;

use crate::error::{Error, Result};

/// `*` and `?` stay within one path segment, as in a shell; `**` crosses them.
const GLOB: MatchOptions =
    MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: true };

/// A place in a store, which may still be a glob.
pub struct Location {
    /// The store that holds it.
    pub store: Arc<dyn ObjectStore>,
    /// What precedes an object's path in its URI: `/` for local files, `s3://bucket/` and the like otherwise.
    pub root: String,
    /// The path below the root, as written.
    pub path: String,
}

/// Understands a path or URI.
///
/// # Errors
/// [`Error::Uri`] if the scheme is unknown to this build or the path is no path.
pub fn parse(uri: &str) -> Result<Location> {
    let fail = |problem: String| Error::Uri { uri: uri.into(), problem };
    let Some((scheme, rest)) = uri.split_once("://") else { return local(uri) };
    if scheme == "file" {
        let url = Url::parse(uri).map_err(|e| fail(e.to_string()))?;
        let path = url.to_file_path().map_err(|()| fail("is no absolute local path".into()))?;
        return local(&path.to_string_lossy());
    }
    let (bucket, path) = rest.split_once('/').unwrap_or((rest, ""));
    let root = format!("{scheme}://{bucket}/");
    let url = Url::parse(&root).map_err(|e| fail(e.to_string()))?;
    let options = std::env::vars().map(|(name, value)| (name.to_lowercase(), value));
    let (store, _) = object_store::parse_url_opts(&url, options)
        .map_err(|e| fail(format!("cannot be opened ({e}); local paths and file:// work in every build")))?;
    Ok(Location { store: store.into(), root, path: path.to_owned() })
}

fn local(path: &str) -> Result<Location> {
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
    Ok(Location { store: Arc::new(LocalFileSystem::new()), root: "/".into(), path })
}

impl Location {
    /// Whether this is a file of this machine.
    pub fn is_local(&self) -> bool {
        self.root == "/"
    }

    /// The path as a key of the store.
    ///
    /// # Errors
    /// [`Error::Uri`] if a segment is empty, `.` or `..`.
    pub fn key(&self) -> Result<Path> {
        self.key_of(&self.path)
    }

    fn key_of(&self, path: &str) -> Result<Path> {
        Path::parse(path)
            .map_err(|e| Error::Uri { uri: format!("{}{path}", self.root), problem: e.to_string() })
    }

    fn uri_of(&self, key: &Path) -> String {
        format!("{}{key}", self.root)
    }

    /// Every object that the path names, matches as a glob, or has below it as a directory: URI and metadata,
    /// ordered by URI.
    ///
    /// # Errors
    /// [`Error::Uri`] if nothing is found or the store cannot be listed.
    pub async fn expand(&self) -> Result<Vec<(String, ObjectMeta)>> {
        let fail = |problem: String| Error::Uri { uri: format!("{}{}", self.root, self.path), problem };
        let mut found = if self.path.contains(['*', '?', '[']) {
            let pattern = Pattern::new(&format!("{}{}", self.root, self.path))
                .map_err(|e| fail(format!("is no valid glob: {e}")))?;
            let fixed = self.path.split('/').take_while(|part| !part.contains(['*', '?', '[']));
            let below = self.list(&fixed.collect::<Vec<_>>().join("/")).await?;
            below.into_iter().filter(|(uri, _)| pattern.matches_with(uri, GLOB)).collect()
        } else {
            match self.store.head(&self.key()?).await {
                Ok(meta) => vec![(self.uri_of(&meta.location), meta)],
                Err(_) => self.list(self.path.trim_end_matches('/')).await?,
            }
        };
        if found.is_empty() {
            return Err(fail("no such file or directory, and nothing matches it; check the path".into()));
        }
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(found)
    }

    async fn list(&self, directory: &str) -> Result<Vec<(String, ObjectMeta)>> {
        let metas: Vec<ObjectMeta> =
            self.store.list(Some(&self.key_of(directory)?)).try_collect().await.map_err(|e| Error::Uri {
                uri: format!("{}{directory}", self.root),
                problem: format!("cannot be listed: {e}"),
            })?;
        Ok(metas.into_iter().map(|meta| (self.uri_of(&meta.location), meta)).collect())
    }
}
