//! Image folders as Hugging Face's ImageFolder: the lines of a `metadata.jsonl` name the images of
//! its folder. An image that no line names is a row with an error, so that nothing is lost
//! silently.

use std::collections::HashSet;

use futures::TryStreamExt;
use tidemill_io::uri;
use twox_hash::XxHash3_64;

use crate::decode::IMAGE_EXTENSIONS;
use crate::error::{Error, Result};
use crate::source::fetch::ordered::resolve_reference;
use crate::source::records::record::Record;
use crate::source::units::InputFile;

/// The file that describes a folder's images.
pub const METADATA: &str = "metadata.jsonl";

/// The field that names a line's image.
pub const FILE_NAME: &str = "file_name";

/// The rows of a folder: the lines of its metadata, then an error for each of `images` (URIs) that
/// no line names. These rows are numbered from the end of the metadata file on.
pub fn folder_rows(
    file: InputFile,
    lines: impl Iterator<Item = Record>,
    images: Vec<String>,
) -> impl Iterator<Item = Record> {
    // A hash per line instead of its name, because folders may be large.
    let mut named = HashSet::new();
    let mut lines = lines.fuse();
    let mut images = (file.size..).zip(images);
    std::iter::from_fn(move || {
        if let Some(line) = lines.next() {
            let name = line.fields.get(FILE_NAME).and_then(|name| name.as_str());
            named.extend(name.map(|name| hash_uri(&resolve_reference(&file.uri, name))));
            return Some(line);
        }
        let (row, uri) = images.find(|(_, uri)| !named.contains(&hash_uri(uri)))?;
        let problem = format!("container: no line of {} names this image", file.uri);
        Some(Record { key: Some(uri), ..Record::with_error(row, problem) })
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
    let folder = file.uri.strip_suffix(METADATA).unwrap_or(&file.uri);
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
    let described: HashSet<&str> = uris
        .iter()
        .filter_map(|uri| uri.strip_suffix(METADATA))
        .filter(|folder| folder.ends_with('/'))
        .collect();
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
            ("/d/own/metadata.jsonl", ""),
            ("/d/own/3.webp", "/d/own/"),
            ("/d/notes.txt", ""),
            ("/d/not-metadata.jsonl", ""),
        ];
        let uris: Vec<String> = cases.iter().map(|(uri, _)| (*uri).to_owned()).collect();
        assert_eq!(owning_folders(&uris), cases.map(|(_, owner)| owner));
    }
}
