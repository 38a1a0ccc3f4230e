//! Lists folders of samples: an image and the files of the same name beside it.

use std::collections::{BTreeMap, HashSet};

use tidemill_io::{block_on, uri};

use crate::error::Result;
use crate::source::records::sample::{SampleOptions, is_image_extension};
use crate::source::units::InputFile;

/// A file of a sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampleFile {
    /// Extension in lower case.
    pub extension: String,
    /// Path or URI.
    pub uri: String,
    /// Size in bytes.
    pub size: u64,
    /// Entity tag, if it is remote.
    pub e_tag: Option<String>,
}

/// An image with the files beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSample {
    /// The path from the source's folder, up to the dot.
    pub key: String,
    /// Its files, by name.
    pub files: Vec<SampleFile>,
}

/// A folder with images, which stands for one input file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampleFolder {
    /// Its URI ends with a slash; its size is the sum of all files, and its identity depends on their
    /// names, sizes and entity tags.
    pub file: InputFile,
    /// Its samples, by key.
    pub samples: Vec<FileSample>,
}

/// Lists the folders with images at some URIs, by path within each of them.
///
/// # Errors
/// If a URI is malformed, matches nothing, or cannot be listed.
pub fn list_folders(uris: &[String], options: &SampleOptions) -> Result<Vec<SampleFolder>> {
    let (mut folders, mut seen) = (Vec::new(), HashSet::new());
    for uri in uris {
        let address = uri::parse(uri)?;
        let listed = block_on(address.expand())?.into_iter().map(|(uri, meta)| {
            let e_tag = meta.e_tag.filter(|_| !address.is_local());
            (
                address.relative(&uri).to_owned(),
                SampleFile { extension: String::new(), size: meta.size, uri, e_tag },
            )
        });
        let new =
            group_files(listed, options).into_iter().filter(|folder| seen.insert(folder.file.uri.clone()));
        folders.extend(new);
    }
    Ok(folders)
}

/// Groups files, each with its path from the source's folder.
fn group_files(
    listed: impl Iterator<Item = (String, SampleFile)>,
    options: &SampleOptions,
) -> Vec<SampleFolder> {
    // By folder and key, in order.
    let mut folders: BTreeMap<String, BTreeMap<String, Vec<SampleFile>>> = BTreeMap::new();
    for (path, file) in listed {
        let Some((key, extension)) = options.split_name(&path) else { continue };
        if options.is_read(&extension) {
            let folder = &file.uri[..file.uri.rfind('/').map_or(0, |slash| slash + 1)];
            let samples = folders.entry(folder.to_owned()).or_default();
            samples.entry(key.to_owned()).or_default().push(SampleFile { extension, ..file });
        }
    }
    folders.into_iter().filter_map(|(uri, samples)| build_folder(uri, samples)).collect()
}

/// The folder of these samples by key; `None` if none of them has an image.
fn build_folder(uri: String, mut samples: BTreeMap<String, Vec<SampleFile>>) -> Option<SampleFolder> {
    samples.retain(|_, files| files.iter().any(|file| is_image_extension(&file.extension)));
    let (mut hasher, mut size) = (blake3::Hasher::new(), 0);
    for (key, files) in &mut samples {
        files.sort_by(|a, b| a.uri.cmp(&b.uri));
        for SampleFile { extension, size: bytes, e_tag, .. } in files {
            let e_tag = e_tag.as_deref().unwrap_or_default();
            hasher.update(format!("{key}.{extension}\n{bytes}\n{e_tag}\n").as_bytes());
            size += *bytes;
        }
    }
    let identity = hasher.finalize().to_hex().to_string();
    let file = InputFile { uri, size, identity, e_tag: None };
    let samples: Vec<_> = samples.into_iter().map(|(key, files)| FileSample { key, files }).collect();
    (!samples.is_empty()).then_some(SampleFolder { file, samples })
}

/// The repeats and the name of a folder as kohya's scripts have them: `10_dog` is 10 and `dog`.
pub fn folder_name(uri: &str) -> (Option<u64>, &str) {
    let name = uri.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let repeats = name.split_once('_').and_then(|(repeats, rest)| Some((repeats.parse().ok()?, rest)));
    repeats.map_or((None, name), |(repeats, rest)| (Some(repeats), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(files: &[(&str, u64)]) -> Vec<SampleFolder> {
        let listed = files.iter().map(|(path, size)| {
            let (extension, uri) = (String::new(), format!("/d/{path}"));
            ((*path).to_owned(), SampleFile { extension, uri, size: *size, e_tag: None })
        });
        group_files(listed, &SampleOptions::default())
    }

    #[test]
    fn images_are_grouped_with_the_files_beside_them() {
        let folders = group(&[
            ("a/2.txt", 3),
            ("a/2.PNG", 10),
            ("a/10.jpg", 10),
            ("a/10.caption", 1),
            ("a/10.json", 1),
            ("a/README.txt", 5),
            ("a/.hidden.jpg", 5),
            ("00000.parquet", 7),
            ("b/1.jpg", 1),
            ("c/1.txt", 1),
        ]);
        let found: Vec<_> = folders
            .iter()
            .flat_map(|folder| &folder.samples)
            .map(|sample| {
                let extensions: Vec<&str> = sample.files.iter().map(|file| file.extension.as_str()).collect();
                (sample.key.as_str(), extensions.join(" "))
            })
            .collect();
        let expected = [("a/10", "caption jpg json"), ("a/2", "png txt"), ("b/1", "jpg")];
        assert_eq!(found, expected.map(|(key, extensions)| (key, extensions.to_owned())));
        assert_eq!((folders[0].file.uri.as_str(), folders[0].file.size), ("/d/a/", 25));
        // A caption of another length, and another name, change what the folder is.
        let identity = |files: &[(&str, u64)]| group(files)[0].file.identity.clone();
        let first = identity(&[("1.jpg", 1), ("1.txt", 1)]);
        assert_eq!(first, identity(&[("1.txt", 1), ("1.jpg", 1)]));
        assert_ne!(first, identity(&[("1.jpg", 1), ("1.txt", 2)]));
        assert_ne!(first, identity(&[("2.jpg", 1), ("2.txt", 1)]));
    }

    #[test]
    fn repeats_are_read_from_the_name_of_a_folder() {
        for (uri, expected) in [
            ("/d/10_sks dog/", (Some(10), "sks dog")),
            ("s3://b/dog/", (None, "dog")),
            ("/d/a_b/", (None, "a_b")),
        ] {
            assert_eq!(folder_name(uri), expected, "{uri}");
        }
    }
}
