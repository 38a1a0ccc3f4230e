//! Image folders as Hugging Face's ImageFolder: the rows of a `metadata.jsonl`, `.csv` or `.parquet`
//! name the images of its folder. An image that no row names is a row with an error, so that nothing
//! is lost silently.

use std::collections::HashSet;

use futures::TryStreamExt;
use tidemill_io::uri;
use twox_hash::XxHash3_64;

use crate::decode::IMAGE_EXTENSIONS;
use crate::error::{Error, Result};
use crate::source::fetch::ordered::resolve_reference;
use crate::source::listing::list_files;
use crate::source::records::record::Record;
use crate::source::units::InputFile;

/// The files that describe a folder's images. If a folder has several, the first one counts.
pub const METADATA: [&str; 3] = ["metadata.jsonl", "metadata.csv", "metadata.parquet"];

/// The field that names a row's image.
pub const FILE_NAME: &str = "file_name";

/// Lists the metadata files at some URIs: one for each folder that has any.
///
/// # Errors
/// If a URI cannot be listed.
pub fn list_metadata(uris: &[String]) -> Result<Vec<InputFile>> {
    let mut files = list_files(uris, |uri| metadata_extension(uri).is_some())?;
    let all: HashSet<String> = files.iter().map(|file| file.uri.clone()).collect();
    files.retain(|file| {
        let folder = folder_of(&file.uri);
        let first = METADATA.iter().map(|name| format!("{folder}{name}")).find(|uri| all.contains(uri));
        first.as_ref() == Some(&file.uri)
    });
    Ok(files)
}

/// The extension of a metadata file; `None` for any other file.
pub fn metadata_extension(uri: &str) -> Option<&str> {
    let name = &uri[folder_of(uri).len()..];
    METADATA.contains(&name).then(|| name.rsplit('.').next()).flatten()
}

/// The folder of a file, with a slash at its end.
fn folder_of(uri: &str) -> &str {
    &uri[..uri.rfind('/').map_or(0, |slash| slash + 1)]
}

/// The rows of a folder: those of its metadata, then an error for each of `images` (URIs) that none
/// of them names. These rows are numbered from the end of the metadata file on. A name that is not
/// found in the folder is looked up from each of `roots`, the folders of the source.
pub fn folder_rows<I: Iterator<Item = Record>>(
    file: InputFile,
    rows: I,
    images: Vec<String>,
    roots: &[String],
) -> impl Iterator<Item = Record> + use<I> {
    // Hashes instead of names, because folders may be large.
    let known: HashSet<u64> = images.iter().map(|uri| hash_uri(uri)).collect();
    let roots = roots.iter().filter_map(|root| uri::parse(root).ok());
    let roots: Vec<String> = roots.map(|root| format!("{}/", root.uri().trim_end_matches('/'))).collect();
    let (mut named, mut end) = (HashSet::new(), file.size);
    let (mut rows, mut images) = (rows.fuse(), (0..).zip(images));
    std::iter::from_fn(move || {
        if let Some(mut row) = rows.next() {
            if let Some(name) = row.fields.get(FILE_NAME).and_then(|name| name.as_str()) {
                let places = std::iter::once(&file.uri).chain(&roots);
                let mut uris = places.map(|place| resolve_reference(place, name));
                let beside = uris.next();
                let found = beside.clone().into_iter().chain(uris).find(|uri| known.contains(&hash_uri(uri)));
                row.image_uri = found.or(beside).filter(|_| !name.is_empty() && row.error.is_none());
                named.extend(row.image_uri.as_deref().map(hash_uri));
            }
            // A compressed file may have more rows than bytes.
            end = end.max(row.row + 1);
            return Some(row);
        }
        let (index, uri) = images.find(|(_, uri)| !named.contains(&hash_uri(uri)))?;
        let problem = format!("container: no line of {} names this image", file.uri);
        Some(Record { key: Some(uri), ..Record::with_error(end + index, problem) })
    })
}

fn hash_uri(uri: &str) -> u64 {
    // References may start with `./`.
    XxHash3_64::oneshot(uri.replace("/./", "/").as_bytes())
}

/// Lists the images that a metadata file describes: those in its folder or below, except in folders
/// with metadata of their own. URIs, in order.
///
/// # Errors
/// If the folder cannot be listed.
pub async fn list_images(file: &InputFile) -> Result<Vec<String>> {
    let folder = folder_of(&file.uri);
    let location = uri::parse(folder)?;
    let prefix = object_store::path::Path::parse(location.path.trim_end_matches('/'))
        .map_err(|e| Error::Read { file: file.uri.clone(), problem: e.to_string() })?;
    let listed = location.store.list(Some(&prefix)).try_collect::<Vec<_>>().await;
    let failed = |source| tidemill_io::Error::Storage { action: "list", uri: folder.into(), source };
    let listed = listed.map_err(failed)?;
    let mut uris: Vec<String> =
        listed.into_iter().map(|meta| format!("{}{}", location.root, meta.location)).collect();
    uris.sort_unstable();
    let owners = owning_folders(&uris);
    Ok(uris.into_iter().zip(owners).filter_map(|(uri, owner)| (owner == folder).then_some(uri)).collect())
}

/// For each URI, the folder whose metadata describes it; empty if it is not an image.
fn owning_folders(uris: &[String]) -> Vec<String> {
    let has_metadata = |uri: &&String| metadata_extension(uri).is_some();
    let described: HashSet<&str> = uris.iter().filter(has_metadata).map(|uri| folder_of(uri)).collect();
    let owner = |uri: &String| {
        let extension = uri.rsplit_once('.').map(|(_, extension)| extension.to_lowercase());
        if !extension.is_some_and(|extension| IMAGE_EXTENSIONS.contains(&extension.as_str())) {
            return String::new();
        }
        let folders = uri.rmatch_indices('/').map(|(slash, _)| &uri[..=slash]);
        folders.into_iter().find(|folder| described.contains(folder)).unwrap_or_default().to_owned()
    };
    uris.iter().map(owner).collect()
}

#[cfg(test)]
mod tests {
    use super::owning_folders;

    #[test]
    fn nearest_metadata_describes_an_image() {
        let cases = [
            ("/d/metadata.jsonl", ""),
            ("/d/1.jpg", "/d/"),
            ("/d/deep/er/2.PNG", "/d/"),
            ("/d/own/metadata.csv", ""),
            ("/d/own/3.webp", "/d/own/"),
            ("/d/notes.txt", ""),
            ("/d/not-metadata.jsonl", ""),
        ];
        let uris: Vec<String> = cases.iter().map(|(uri, _)| (*uri).to_owned()).collect();
        assert_eq!(owning_folders(&uris), cases.map(|(_, owner)| owner));
    }
}
