//! The container format of pairs, by the names of files.

use std::collections::HashSet;

use crate::decode::IMAGE_EXTENSIONS;
use crate::error::{Error, Result};
use crate::source::config::Format;
use crate::source::records::image_folder::metadata_extension;
use crate::source::units::InputFile;

/// The ends of archives' names. Beside them there are often statistics in JSON or Parquet.
const ARCHIVES: (Format, &[&str]) =
    (Format::WebDataset, &[".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.zstd", ".zip"]);

/// Other formats in the order of preference, with the ends of their files' names.
const OTHERS: [(Format, &[&str]); 5] = [
    (Format::Parquet, &[".parquet", ".pq"]),
    (Format::Arrow, &[".arrow", ".feather", ".ipc"]),
    // Spark's JSON is lines, too.
    (
        Format::Jsonl,
        &[".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz", ".json.gz", ".jsonl.zst", ".ndjson.zst"],
    ),
    (Format::Csv, &[".csv", ".tsv", ".csv.gz", ".tsv.gz", ".csv.zst", ".tsv.zst"]),
    (Format::Coco, &[".json"]),
];

/// Files of pairs.
#[derive(Debug, Clone, PartialEq)]
pub struct Container {
    /// Their format.
    pub format: Format,
    /// The path, URI or glob that names them and no other file.
    pub uri: String,
    /// URIs and sizes of the files; there is at least one.
    pub files: Vec<(String, u64)>,
}

impl Container {
    /// Finds the pairs among the files (URI and size, sorted) that lie at `path`. `root` is the absolute
    /// form of the path, with which their URIs start.
    ///
    /// # Errors
    /// If no file has a known format.
    pub fn find(path: &str, root: &str, files: &[(&str, u64)]) -> Result<Self> {
        let images = || Some((Format::Images, path.to_owned(), find_images(files)?));
        let others = || OTHERS.into_iter().find_map(|format| find_by_end(path, root, files, format));
        let found = find_by_end(path, root, files, ARCHIVES).or_else(images).or_else(others);
        let (format, uri, files) = found.ok_or_else(|| no_pairs(path, files))?;
        let files = files.into_iter().map(|(uri, size)| (uri.to_owned(), size)).collect();
        Ok(Self { format, uri, files })
    }

    /// The first file.
    pub fn first(&self) -> InputFile {
        let (uri, size) = self.files.first().cloned().unwrap_or_default();
        InputFile { uri, size, identity: String::new(), e_tag: None }
    }

    /// The bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|(_, size)| size).sum()
    }
}

/// URIs and sizes of files.
type Files<'a> = Vec<(&'a str, u64)>;

/// The files of a format, and the path or glob that names them. Of several ends, those with the first
/// one that files have: a glob names only one.
fn find_by_end<'a>(
    path: &str,
    root: &str,
    files: &[(&'a str, u64)],
    (format, ends): (Format, &[&str]),
) -> Option<(Format, String, Files<'a>)> {
    let with_end =
        |end: &&str| files.iter().filter(|(uri, _)| uri.ends_with(end)).copied().collect::<Files>();
    let (end, matching) = ends.iter().map(|end| (end, with_end(end))).find(|(_, files)| !files.is_empty())?;
    let is_folder = files.iter().all(|(uri, _)| is_below(uri, root));
    let uri = if is_folder { glob(path, root, end, &matching) } else { path.to_owned() };
    Some((format, uri, matching))
}

/// The metadata of images, or else the images, if most of them have a caption in a file beside them.
fn find_images<'a>(files: &[(&'a str, u64)]) -> Option<Files<'a>> {
    let images: Files = files.iter().filter(|(uri, _)| is_image(uri)).copied().collect();
    if images.is_empty() {
        return None;
    }
    let metadata: Files =
        files.iter().filter(|(uri, _)| metadata_extension(uri).is_some()).copied().collect();
    if !metadata.is_empty() {
        return Some(metadata);
    }
    let stem = |uri: &'a str| uri.rsplit_once('.').map_or(uri, |(stem, _)| stem);
    let captions = files.iter().map(|(uri, _)| *uri).filter(|uri| is_caption(uri));
    let captions: HashSet<&str> = captions.map(stem).collect();
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
            // Not every metadata.parquet describes images.
            ("d", "/x/d", &["/x/d/metadata.parquet"], (Format::Parquet, "d/*.parquet", 1)),
            ("d", "/x/d", &["/x/d/a.zip"], (Format::WebDataset, "d/*.zip", 1)),
            ("c.json", "/x/c.json", &["/x/c.json"], (Format::Coco, "c.json", 1)),
        ] {
            let files: Vec<(&str, u64)> = files.iter().map(|uri| (*uri, 10)).collect();
            let found = Container::find(path, root, &files).unwrap();
            assert_eq!((found.format, found.uri.as_str(), found.files.len()), expected, "{path}");
            assert_eq!(found.bytes(), 10 * found.files.len() as u64);
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
