//! Unfinished files of local folders. object_store writes a local object to a file with the
//! object's name, `#` and a number, and renames it when it is complete. Its listings hide such
//! files, and it never removes those that a killed process has left.

use std::path::{Path as FsPath, PathBuf};

use object_store::local::LocalFileSystem;

use crate::error::{Error, Result};
use crate::location::folder::Location;
use crate::location::listing::Entry;

impl Location {
    /// Lists the unfinished files below a folder (`""` for all). A bucket has none.
    pub fn list_unfinished_files(&self, folder: &str) -> Vec<Entry> {
        let mut found = Vec::new();
        if let Some(root) = self.local_root() {
            let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
            collect_unfinished(&root.join(folder), &prefix, &mut found);
        }
        found
    }

    /// Deletes an unfinished file, unless it is already gone.
    ///
    /// # Errors
    /// [`Error::Storage`].
    pub fn delete_unfinished_file(&self, entry: &Entry) -> Result<()> {
        match self.local_root().map(|root| std::fs::remove_file(root.join(&entry.key))) {
            Some(Err(error)) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::Storage {
                action: "delete",
                uri: self.uri_of(&entry.key),
                source: object_store::Error::Generic { store: "local", source: error.into() },
            }),
            _ => Ok(()),
        }
    }

    fn local_root(&self) -> Option<PathBuf> {
        let root = self.is_local().then(|| LocalFileSystem::new().path_to_filesystem(&self.prefix));
        root?.ok()
    }
}

/// Collects the unfinished files below a folder. Skips what cannot be read; a later call finds it.
fn collect_unfinished(folder: &FsPath, prefix: &str, found: &mut Vec<Entry>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(metadata) = entry.metadata() else { continue };
        let name = entry.file_name().to_string_lossy().into_owned();
        let key = format!("{prefix}{name}");
        if metadata.is_dir() {
            collect_unfinished(&entry.path(), &format!("{key}/"), found);
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
    fn only_files_being_written_are_listed_as_unfinished() {
        let folder = tempfile::tempdir().unwrap();
        let location = Location::open(folder.path().to_str().unwrap()).unwrap();
        location.put("a/whole", "x".into()).unwrap();
        let mut upload = location.upload("a/large");
        upload.write(vec![0; 20 << 20].into()).unwrap();
        std::fs::write(folder.path().join("a/#"), "x").unwrap();
        let unfinished = location.list_unfinished_files("");
        // Only the names: the upload goes on writing.
        let keys = |entries: &[Entry]| entries.iter().map(|entry| entry.key.clone()).collect::<Vec<_>>();
        assert_eq!(keys(&unfinished), ["a/large#1"], "object_store's name for the file");
        assert_eq!(keys(&location.list_unfinished_files("a")), keys(&unfinished));
        assert!(location.list_unfinished_files("b").is_empty());
        drop(upload);
        location.delete_unfinished_file(&unfinished[0]).unwrap();
        assert!(location.list_unfinished_files("").is_empty());
        assert_eq!(location.list("").unwrap(), ["a/#", "a/whole"]);
    }
}
