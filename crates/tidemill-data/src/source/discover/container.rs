//! The container format of pairs, by the names of files.

use std::collections::HashSet;

use crate::decode::IMAGE_EXTENSIONS;
use crate::error::{Error, Result};
use crate::source::config::Format;
use crate::source::records::image_folder::metadata_extension;

/// Formats in the order of preference, with the ends of their files' names: beside shards there are
/// often statistics in JSON or Parquet.
const FORMATS: [(Format, &[&str]); 6] = [
    (Format::WebDataset, &[".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.zstd", ".zip"]),
    (Format::Parquet, &[".parquet", ".pq"]),
    (Format::Arrow, &[".arrow", ".feather", ".ipc"]),
    (Format::Jsonl, &[".jsonl", ".ndjson"]),
    (Format::Csv, &[".csv", ".tsv"]),
    (Format::Coco, &[".json"]),
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
    /// All of them.
    pub uris: Vec<String>,
    /// Their bytes.
    pub bytes: u64,
    /// The first file.
    pub first: String,
    /// The first file's bytes.
    pub first_bytes: u64,
}

impl Container {
    /// Finds the pairs among the files (URI and size, sorted) that lie at `path`. `root` is the absolute
    /// form of the path, with which their URIs start.
    ///
    /// # Errors
    /// If no file has a known format.
    pub fn find(path: &str, root: &str, files: &[(&str, u64)]) -> Result<Self> {
        let is_folder = files.iter().all(|(uri, _)| is_below(uri, root));
        let by_end = || {
            FORMATS.into_iter().find_map(|(format, ends)| {
                // The first end of the list that files have: a glob names only one.
                ends.iter().find_map(|end| {
                    let matching: Vec<_> =
                        files.iter().filter(|(uri, _)| uri.ends_with(end)).copied().collect();
                    (!matching.is_empty()).then(|| {
                        let uri = if is_folder { glob(path, root, end, &matching) } else { path.to_owned() };
                        (format, uri, matching)
                    })
                })
            })
        };
        let as_images = |matching: Vec<_>| (Format::Images, path.to_owned(), matching);
        let has_archives = files.iter().any(|(uri, _)| FORMATS[0].1.iter().any(|end| uri.ends_with(end)));
        let images = || find_metadata(files).or_else(|| find_captioned_images(files)).map(as_images);
        let found = if has_archives { by_end() } else { images().or_else(by_end) };
        let (format, uri, matching) = found.ok_or_else(|| no_pairs(path, files))?;
        let (first, first_bytes) = matching[0];
        let bytes = matching.iter().map(|(_, size)| size).sum();
        let uris: Vec<String> = matching.iter().map(|(uri, _)| (*uri).to_owned()).collect();
        Ok(Self { format, uri, files: uris.len(), uris, bytes, first: first.into(), first_bytes })
    }
}

/// The files that describe images.
fn find_metadata<'a>(files: &[(&'a str, u64)]) -> Option<Vec<(&'a str, u64)>> {
    let described = files.iter().filter(|(uri, _)| metadata_extension(uri).is_some());
    Some(described.copied().collect::<Vec<_>>()).filter(|found| !found.is_empty())
}

/// The images, if most of them have a caption in a file beside them.
fn find_captioned_images<'a>(files: &[(&'a str, u64)]) -> Option<Vec<(&'a str, u64)>> {
    let stem = |uri: &'a str| uri.rsplit_once('.').map_or(uri, |(stem, _)| stem);
    let captions: HashSet<&str> =
        files.iter().map(|(uri, _)| *uri).filter(|uri| is_caption(uri)).map(stem).collect();
    let images: Vec<_> = files.iter().filter(|(uri, _)| is_image(uri)).copied().collect();
    let captioned = images.iter().filter(|(uri, _)| captions.contains(stem(uri))).count();
    (2 * captioned > images.len()).then_some(images)
}

fn is_caption(uri: &str) -> bool {
    uri.ends_with(".txt") || uri.ends_with(".caption")
}

fn is_image(uri: &str) -> bool {
    let end = uri.rsplit('.').next().unwrap_or_default().to_lowercase();
    IMAGE_EXTENSIONS.contains(&end.as_str())
}

/// The path of a file from a folder; `None` if it is not in the folder.
fn path_below<'a>(uri: &'a str, folder: &str) -> Option<&'a str> {
    uri.strip_prefix(folder.trim_end_matches('/'))?.strip_prefix('/')
}

fn is_below(uri: &str, folder: &str) -> bool {
    path_below(uri, folder).is_some()
}

/// The glob for the files with this end below the folder `path`.
fn glob(path: &str, root: &str, end: &str, files: &[(&str, u64)]) -> String {
    let is_direct = |uri: &str| path_below(uri, root).is_some_and(|inner| !inner.contains('/'));
    let depth = if files.iter().all(|(uri, _)| is_direct(uri)) { "" } else { "**/" };
    format!("{}/{depth}*{end}", path.trim_end_matches('/'))
}

fn no_pairs(path: &str, files: &[(&str, u64)]) -> Error {
    let images = files.iter().filter(|(uri, _)| is_image(uri)).count();
    let problem = if images > 0 {
        format!(
            "{path} has {images} images without captions: write a file beside each (1.txt for 1.jpg), or a \
             metadata.jsonl with lines such as {{\"file_name\": \"1.jpg\", \"caption\": \"a dog\"}}"
        )
    } else {
        format!(
            "none of the {} files at {path} is Parquet, Arrow, a tar or zip, JSON lines, CSV, TSV, COCO's JSON \
             or an image with a caption beside it",
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
        for (path, root, files, expected) in [
            ("d", "/x/d", &["/x/d/a.parquet", "/x/d/b.parquet"][..], (Format::Parquet, "d/*.parquet", 2)),
            ("d/", "/x/d", &["/x/d/d/a.parquet", "/x/d/README.md"], (Format::Parquet, "d/**/*.parquet", 1)),
            (".", "/x", &["/x/a.csv", "/x/d/b.csv"], (Format::Csv, "./**/*.csv", 2)),
            (
                "s3://b/d",
                "s3://b/d",
                &["s3://b/d/0.tar", "s3://b/d/0.parquet"],
                (Format::WebDataset, "s3://b/d/*.tar", 1),
            ),
            (
                "d",
                "/x/d",
                &["/x/d/1.jpg", "/x/d/metadata.jsonl", "/x/d/e/metadata.jsonl"],
                (Format::Images, "d", 2),
            ),
            ("d/*.csv", "/x/d/*.csv", &["/x/d/a.csv"], (Format::Csv, "d/*.csv", 1)),
            ("d/a.jsonl", "/x/d/a.jsonl", &["/x/d/a.jsonl"], (Format::Jsonl, "d/a.jsonl", 1)),
            ("d", "/x/d", &["/x/d/1.jpg", "/x/d/metadata.csv"], (Format::Images, "d", 1)),
            (
                "d",
                "/x/d",
                &["/x/d/0/1.jpg", "/x/d/0/1.txt", "/x/d/0/1.json", "/x/d/0.parquet"],
                (Format::Images, "d", 1),
            ),
            ("d", "/x/d", &["/x/d/data-0.arrow", "/x/d/state.json"], (Format::Arrow, "d/*.arrow", 1)),
            ("d", "/x/d", &["/x/d/a.zip"], (Format::WebDataset, "d/*.zip", 1)),
            ("c.json", "/x/c.json", &["/x/c.json"], (Format::Coco, "c.json", 1)),
        ] {
            let files: Vec<(&str, u64)> = files.iter().map(|uri| (*uri, 10)).collect();
            let found = Container::find(path, root, &files).unwrap();
            assert_eq!((found.format, found.uri.as_str(), found.files), expected, "{path}");
            assert_eq!(found.bytes, 10 * found.files as u64);
        }
        for (files, expected) in
            [(&["/d/1.jpg"][..], "1 images without captions"), (&["/d/a.txt"], "none of the 1 files")]
        {
            let files: Vec<(&str, u64)> = files.iter().map(|uri| (*uri, 1)).collect();
            let problem = Container::find("d", "/d", &files).unwrap_err().to_string();
            assert!(problem.contains(expected), "{problem}");
        }
    }
}
