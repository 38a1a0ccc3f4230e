//! Lists folders of samples: an image and the files of the same name beside it.

use std::collections::{BTreeMap, HashMap};

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

/// A file as listed: its path from the source's folder, URI, size, and entity tag if it is remote.
struct ListedFile {
    path: String,
    uri: String,
    size: u64,
    e_tag: Option<String>,
}

/// Lists the folders with images at some URIs, by path within each of them.
///
/// # Errors
/// If a URI is malformed, matches nothing, or cannot be listed.
pub fn list_folders(uris: &[String], options: &SampleOptions) -> Result<Vec<SampleFolder>> {
    let mut folders: Vec<SampleFolder> = Vec::new();
    for uri in uris {
        let address = uri::parse(uri)?;
        let listed = block_on(address.expand())?.into_iter().map(|(uri, meta)| ListedFile {
            path: address.relative(&uri).to_owned(),
            size: meta.size,
            e_tag: meta.e_tag.filter(|_| !address.is_local()),
            uri,
        });
        for folder in group_files(listed, options) {
            if folders.iter().all(|known| known.file.uri != folder.file.uri) {
                folders.push(folder);
            }
        }
    }
    Ok(folders)
}

fn group_files(listed: impl Iterator<Item = ListedFile>, options: &SampleOptions) -> Vec<SampleFolder> {
    let mut folders: BTreeMap<String, Vec<ListedFile>> = BTreeMap::new();
    for file in listed {
        let folder = file.uri[..file.uri.rfind('/').map_or(0, |slash| slash + 1)].to_owned();
        folders.entry(folder).or_default().push(file);
    }
    folders.into_iter().filter_map(|(uri, files)| group_folder(uri, files, options)).collect()
}

/// The samples of a folder; `None` if it has no images.
fn group_folder(uri: String, files: Vec<ListedFile>, options: &SampleOptions) -> Option<SampleFolder> {
    let mut samples: HashMap<String, Vec<(SampleFile, ListedFile)>> = HashMap::new();
    for file in files {
        let Some((key, extension)) = options.split_name(&file.path) else { continue };
        if options.is_read(&extension) {
            let of_sample = SampleFile { extension, uri: file.uri.clone(), size: file.size };
            samples.entry(key.to_owned()).or_default().push((of_sample, file));
        }
    }
    samples.retain(|_, files| files.iter().any(|(file, _)| is_image_extension(&file.extension)));
    let mut samples: Vec<_> = samples.into_iter().collect();
    samples.sort_by(|(a, _), (b, _)| a.cmp(b));
    let mut hasher = blake3::Hasher::new();
    let (mut size, mut grouped) = (0, Vec::new());
    for (key, mut files) in samples {
        files.sort_by(|(a, _), (b, _)| a.uri.cmp(&b.uri));
        for (_, listed) in &files {
            let e_tag = listed.e_tag.as_deref().unwrap_or_default();
            hasher.update(format!("{}\n{}\n{e_tag}\n", listed.path, listed.size).as_bytes());
            size += listed.size;
        }
        grouped.push(FileSample { key, files: files.into_iter().map(|(file, _)| file).collect() });
    }
    let identity = hasher.finalize().to_hex().to_string();
    let file = InputFile { uri, size, identity, e_tag: None };
    (!grouped.is_empty()).then_some(SampleFolder { file, samples: grouped })
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
        let listed = files.iter().map(|(path, size)| ListedFile {
            path: (*path).to_owned(),
            uri: format!("/d/{path}"),
            size: *size,
            e_tag: None,
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
