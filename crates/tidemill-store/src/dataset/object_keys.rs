//! The keys and folders of the objects of a dataset.

/// Key of the object that marks a dataset.
pub(crate) const DATASET: &str = "dataset.json";
/// Folder of the data files.
pub(crate) const DATA: &str = "data";
/// Prefix of the objects that hold empty captions.
pub(crate) const EMPTY_CAPTION: &str = "empty-caption-";
/// Folder of the commits.
pub(crate) const COMMITS: &str = "commits";
/// Folder of the manifest snapshots.
pub(crate) const MANIFEST: &str = "manifest";
