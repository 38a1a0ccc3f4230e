//! Lists the objects of a folder.

use std::time::{Duration, SystemTime};

use object_store::ObjectMeta;

use crate::error::Result;
use crate::location::folder::Location;
use crate::store::{list_names, list_objects};

/// A listed object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The object's key.
    pub key: String,
    /// The object's size.
    pub bytes: u64,
    /// The time of the last write, by the store's clock.
    pub modified: SystemTime,
}

impl Entry {
    /// The time since the last write; zero if the store's clock is ahead.
    pub fn age(&self) -> Duration {
        self.modified.elapsed().unwrap_or_default()
    }
}

impl Location {
    /// The keys of all objects below a folder (`""` for all), sorted.
    ///
    /// # Errors
    /// [`crate::Error::Storage`].
    pub fn list(&self, folder: &str) -> Result<Vec<String>> {
        Ok(self.entries(folder)?.into_iter().map(|entry| entry.key).collect())
    }

    /// The names of the objects and folders right in a folder (`""` for this one), sorted. What is in
    /// its folders is not listed.
    ///
    /// # Errors
    /// [`crate::Error::Storage`].
    pub fn list_names(&self, folder: &str) -> Result<Vec<String>> {
        let path = self.path(folder);
        let mut names = self.wait("list", folder, list_names(self.store.as_ref(), &path, &self.limits))?;
        names.sort_unstable();
        Ok(names)
    }

    /// All objects below a folder (`""` for all), sorted by key.
    ///
    /// # Errors
    /// [`crate::Error::Storage`].
    pub fn entries(&self, folder: &str) -> Result<Vec<Entry>> {
        let path = self.path(folder);
        let objects = self.wait("list", folder, list_objects(self.store.as_ref(), &path, &self.limits))?;
        let to_entry = |meta: &ObjectMeta| {
            let parts = meta.location.prefix_match(&self.prefix)?;
            let key = parts.map(|part| part.as_ref().to_owned()).collect::<Vec<_>>().join("/");
            Some(Entry { key, bytes: meta.size, modified: meta.last_modified.into() })
        };
        let mut entries: Vec<Entry> = objects.iter().filter_map(to_entry).collect();
        entries.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(entries)
    }
}
