//! Expands an address to the objects that it names: a glob's matches, one object, or all objects
//! below a folder.

use std::collections::HashSet;

use glob::{MatchOptions, Pattern};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStoreExt};

use crate::error::{Error, Result};
use crate::store::list_objects;
use crate::uri::address::Address;

/// As in a shell, `*` and `?` stay within one path segment and `**` crosses segments.
const GLOB: MatchOptions =
    MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: true };

impl Address {
    /// Lists the objects that this address names: the matches of a glob, a single object, or all
    /// objects below a folder. Returns their URIs and metadata, sorted by URI. As in a shell, a
    /// glob without matches may also be a literal name.
    ///
    /// # Errors
    /// [`Error::Uri`] if nothing is found, [`Error::Storage`] if the store refuses.
    pub async fn expand(&self) -> Result<Vec<(String, ObjectMeta)>> {
        self.limits.warn_if_slow("list", || self.uri(), self.find_objects()).await
    }

    async fn find_objects(&self) -> Result<Vec<(String, ObjectMeta)>> {
        let mut found = if self.is_glob() { self.list_matches().await? } else { Vec::new() };
        if found.is_empty() {
            found = match self.head().await? {
                Some(meta) => vec![(self.uri(), meta)],
                None => self.list_folder(self.path.trim_end_matches('/')).await?,
            };
        }
        if found.is_empty() {
            let problem = "no such file or directory, and nothing matches it; check the path".into();
            return Err(Error::Uri { uri: self.uri(), problem });
        }
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(found)
    }

    async fn list_matches(&self) -> Result<Vec<(String, ObjectMeta)>> {
        let pattern = Pattern::new(&self.uri())
            .map_err(|e| Error::Uri { uri: self.uri(), problem: format!("is no valid glob: {e}") })?;
        let mut objects = self.list_folder(&self.fixed_prefix()).await?;
        objects.retain(|(uri, _)| pattern.matches_with(uri, GLOB));
        Ok(objects)
    }

    /// The metadata of the object with this exact path; `None` if there is no such object.
    async fn head(&self) -> Result<Option<ObjectMeta>> {
        let key = self.key()?;
        if key.as_ref().is_empty() {
            return Ok(None);
        }
        match self.store.head(&key).await {
            Ok(meta) => Ok(Some(meta)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            // The path is a directory.
            Err(_) if self.is_local() => Ok(None),
            Err(source) => Err(self.storage_error("read", source)),
        }
    }

    async fn list_folder(&self, folder: &str) -> Result<Vec<(String, ObjectMeta)>> {
        if self.is_http() {
            return Ok(Vec::new());
        }
        let key = self.parse_key(folder)?;
        let objects = list_objects(self.store.as_ref(), &key, &self.limits).await.map_err(|source| {
            let uri = format!("{}{folder}", self.root);
            Error::Storage { action: "list", uri, source }
        })?;
        let objects = if self.is_local() { objects } else { remove_folder_markers(objects, &key) };
        Ok(objects.into_iter().map(|meta| (format!("{}{}", self.root, meta.location), meta)).collect())
    }
}

/// Removes the empty objects that web consoles create for folders. Such an object has the name of
/// the listed folder, or of a folder below it that contains an object.
fn remove_folder_markers(mut listed: Vec<ObjectMeta>, folder: &Path) -> Vec<ObjectMeta> {
    if listed.iter().all(|meta| meta.size > 0) {
        return listed;
    }
    let parent_folders = |meta: &ObjectMeta| {
        let name = meta.location.as_ref();
        name.match_indices('/').map(|(end, _)| name[..end].to_owned()).collect::<Vec<_>>()
    };
    let mut folders: HashSet<String> = listed.iter().flat_map(parent_folders).collect();
    folders.insert(folder.to_string());
    listed.retain(|meta| meta.size > 0 || !folders.contains(meta.location.as_ref()));
    listed
}

#[cfg(test)]
mod tests {
    use crate::uri::parse;

    #[test]
    fn a_glob_without_matches_is_taken_as_a_literal_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        for name in ["a1/x", "b[1]/x", "c[1]/x", "c1/x"] {
            std::fs::create_dir_all(path(name)).unwrap();
            std::fs::write(path(&format!("{name}/file")), name).unwrap();
        }
        let expand = |uri: &str| crate::runtime::block_on(parse(&path(uri)).unwrap().expand()).unwrap();
        for (uri, file) in [("a[1]/x/*", "a1/x/file"), ("b[1]/x", "b[1]/x/file"), ("c[1]/x/*", "c1/x/file")] {
            let files: Vec<String> = expand(uri).into_iter().map(|(uri, _)| uri).collect();
            assert_eq!(files, [path(file)], "{uri}");
        }
    }
}
