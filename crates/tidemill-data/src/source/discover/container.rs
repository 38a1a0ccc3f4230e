//! The container format of pairs, by the names of files.

use crate::decode::IMAGE_EXTENSIONS;
use crate::error::{Error, Result};
use crate::source::config::Format;
use crate::source::records::image_folder::METADATA;

/// Formats in the order of preference, with the ends of their files' names: beside shards there are
/// often statistics in JSON or Parquet, and beside images their list.
const FORMATS: [(Format, &[&str]); 5] = [
    (Format::WebDataset, &[".tar", ".tar.gz", ".tgz"]),
    (Format::Images, &[METADATA]),
    (Format::Parquet, &[".parquet"]),
    (Format::Jsonl, &[".jsonl", ".ndjson"]),
    (Format::Csv, &[".csv"]),
];

/// Files of pairs.
#[derive(Debug, Clone, PartialEq)]
pub struct Container {
    /// Their format.
    pub format: Format,
    /// The path, URI or glob that names them and no other file.
    pub uri: String,
    /// The number of files.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// The first file.
    pub first: String,
    /// The first file's bytes.
    pub first_bytes: u64,
}

impl Container {
    /// Finds the pairs among the files (URI and size, sorted) that lie at `path`.
    ///
    /// # Errors
    /// If no file has a known format.
    pub fn find(path: &str, files: &[(&str, u64)]) -> Result<Self> {
        let found = FORMATS.into_iter().find_map(|(format, ends)| {
            // The first end of the list that files have: a glob names only one.
            ends.iter().find_map(|end| {
                let matching: Vec<_> = files.iter().filter(|(uri, _)| has_end(uri, end)).copied().collect();
                (!matching.is_empty()).then_some((format, *end, matching))
            })
        });
        let (format, end, matching) = found.ok_or_else(|| no_pairs(path, files))?;
        let (first, first_bytes) = matching[0];
        let uri = if is_named_itself(path, files) || format == Format::Images {
            path.to_owned()
        } else {
            glob(path, end, &matching)
        };
        let bytes = matching.iter().map(|(_, size)| size).sum();
        Ok(Self { format, uri, files: matching.len(), bytes, first: first.into(), first_bytes })
    }
}

fn has_end(uri: &str, end: &str) -> bool {
    if end == METADATA { file_name(uri) == METADATA } else { uri.to_lowercase().ends_with(end) }
}

fn file_name(uri: &str) -> &str {
    uri.rsplit('/').next().unwrap_or(uri)
}

/// Whether the path is a glob or names one file.
fn is_named_itself(path: &str, files: &[(&str, u64)]) -> bool {
    path.contains(['*', '?', '[']) || matches!(files, [(only, _)] if file_name(only) == file_name(path))
}

/// The glob for the files with this end below a folder.
fn glob(folder: &str, end: &str, files: &[(&str, u64)]) -> String {
    let folder = folder.trim_end_matches('/');
    let name = folder.rsplit('/').next().unwrap_or(folder);
    let is_direct = |uri: &str| uri.rsplit('/').nth(1) == Some(name) || name == ".";
    let depth = if files.iter().all(|(uri, _)| is_direct(uri)) { "" } else { "**/" };
    format!("{folder}/{depth}*{end}")
}

fn no_pairs(path: &str, files: &[(&str, u64)]) -> Error {
    let is_image = |uri: &str| {
        let end = uri.rsplit('.').next().unwrap_or_default().to_lowercase();
        IMAGE_EXTENSIONS.contains(&end.as_str())
    };
    let images = files.iter().filter(|(uri, _)| is_image(uri)).count();
    let problem = if images > 0 {
        format!(
            "{path} has {images} images and no {METADATA}, which gives each a caption by lines such as \
             {{\"file_name\": \"1.jpg\", \"caption\": \"a dog\"}}"
        )
    } else {
        format!(
            "none of the {} files at {path} is Parquet, a tar, JSON lines, CSV or {METADATA} beside images",
            files.len()
        )
    };
    Error::Config { key: "source.uri".into(), problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_one_format_and_a_glob() {
        for (path, files, expected) in [
            ("d", &["/x/d/a.parquet", "/x/d/b.parquet"][..], (Format::Parquet, "d/*.parquet", 2)),
            ("d/", &["/x/d/t/a.parquet", "/x/d/README.md"], (Format::Parquet, "d/**/*.parquet", 1)),
            (
                "s3://b/d",
                &["s3://b/d/0.tar", "s3://b/d/0.parquet"],
                (Format::WebDataset, "s3://b/d/*.tar", 1),
            ),
            ("d", &["/x/d/1.jpg", "/x/d/metadata.jsonl", "/x/d/e/metadata.jsonl"], (Format::Images, "d", 2)),
            ("d/*.csv", &["/x/d/a.csv"], (Format::Csv, "d/*.csv", 1)),
            ("d/a.jsonl", &["/x/d/a.jsonl"], (Format::Jsonl, "d/a.jsonl", 1)),
        ] {
            let files: Vec<(&str, u64)> = files.iter().map(|uri| (*uri, 10)).collect();
            let found = Container::find(path, &files).unwrap();
            assert_eq!((found.format, found.uri.as_str(), found.files), expected, "{path}");
            assert_eq!(found.bytes, 10 * found.files as u64);
        }
        for (files, expected) in
            [(&["/d/1.jpg"][..], "1 images and no metadata.jsonl"), (&["/d/a.txt"], "none of the 1 files")]
        {
            let files: Vec<(&str, u64)> = files.iter().map(|uri| (*uri, 1)).collect();
            let problem = Container::find("d", &files).unwrap_err().to_string();
            assert!(problem.contains(expected), "{problem}");
        }
    }
}
