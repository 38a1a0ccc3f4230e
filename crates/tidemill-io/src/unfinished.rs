//! What somebody is writing to a local folder, or was when it died. The store writes an object to a file of its name with `#` and a
//! number, and gives it the name when it is whole; it shows such files to nobody, and removes none that a killed process has left.

use std::path::Path as FsPath;

use object_store::local::LocalFileSystem;

use crate::error::{Error, Result};
use crate::location::{Entry, Location};

impl Location {
    /// Files that are not whole in this folder, by key; none in a bucket, which has no such files.
    pub fn unfinished(&self) -> Vec<Entry> {
        let (mut found, root) = (Vec::new(), self.local_root());
        if let Some(root) = root {
            walk(&root, "", &mut found);
        }
        found
    }

    /// Deletes one of them; it may be gone.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub fn delete_unfinished(&self, entry: &Entry) -> Result<()> {
        match self.local_root().map(|root| std::fs::remove_file(root.join(&entry.key))) {
            Some(Err(error)) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::Storage {
                action: "delete",
                uri: self.uri_of(&entry.key),
                source: object_store::Error::Generic { store: "local", source: error.into() },
            }),
            _ => Ok(()),
        }
    }

    fn local_root(&self) -> Option<std::path::PathBuf> {
        let root = self.is_local().then(|| LocalFileSystem::new().path_to_filesystem(self.prefix()));
        root?.ok()
    }
}

/// What cannot be looked at now is looked at another time.
fn walk(folder: &FsPath, prefix: &str, found: &mut Vec<Entry>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(metadata) = entry.metadata() else { continue };
        let name = entry.file_name().to_string_lossy().into_owned();
        let key = format!("{prefix}{name}");
        if metadata.is_dir() {
            walk(&entry.path(), &format!("{key}/"), found);
        } else if is_unfinished(&name)
            && let Ok(modified) = metadata.modified()
        {
            found.push(Entry { key, bytes: metadata.len(), modified });
        }
    }
}

fn is_unfinished(name: &str) -> bool {
    name.rsplit_once('#')
        .is_some_and(|(_, number)| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_being_written_is_found_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let location = Location::open(folder.path().to_str().unwrap()).unwrap();
        location.put("a/whole", "x".into()).unwrap();
        let mut upload = location.upload("a/large");
        upload.write(vec![0; 20 << 20].into()).unwrap();
        std::fs::write(folder.path().join("a/#"), "x").unwrap();
        let unfinished = location.unfinished();
        let keys: Vec<&str> = unfinished.iter().map(|entry| entry.key.as_str()).collect();
        assert_eq!(keys, ["a/large#1"], "as the store names it");
        drop(upload);
        location.delete_unfinished(&unfinished[0]).unwrap();
        assert!(location.unfinished().is_empty());
        assert_eq!(location.list("").unwrap(), ["a/#", "a/whole"]);
    }
}
