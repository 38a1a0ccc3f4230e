//! Lists the files of a source, each with the identity that its units and sample ids are derived
//! from. The identity depends on content and name and not on location, so a moved or copied data
//! set stays the same.

use std::collections::{HashMap, HashSet};

use futures::{StreamExt, TryStreamExt};
use object_store::ObjectMeta;
use tidemill_io::{Address, block_on, uri};

use crate::error::Result;
use crate::source::units::InputFile;

/// Bytes at each end of a local file that enter its identity. The tail of a Parquet file has the
/// footer with the location, size and statistics of every column chunk. Hashing a whole source just
/// to identify it would take as long as reading it.
const END_BYTES: u64 = 64 << 10;

/// Files that are identified at the same time.
const CONCURRENT_FILES: usize = 16;

/// Lists every wanted file of every URI once, with its identity: in the order of the URIs, and by
/// path within one of them.
///
/// # Errors
/// If a URI is malformed, matches nothing, or cannot be read.
pub fn list_files(uris: &[String], is_wanted: impl Fn(&str) -> bool) -> Result<Vec<InputFile>> {
    block_on(list_all_files(uris, is_wanted))
}

async fn list_all_files(uris: &[String], is_wanted: impl Fn(&str) -> bool) -> Result<Vec<InputFile>> {
    let mut files: Vec<InputFile> = Vec::new();
    let mut seen = HashSet::new();
    let mut repetitions: HashMap<String, u64> = HashMap::new();
    for uri in uris {
        let address = uri::parse(uri)?;
        let new =
            address.expand().await?.into_iter().filter(|(uri, _)| is_wanted(uri) && seen.insert(uri.clone()));
        let new: Vec<_> = new.collect();
        let identified = futures::stream::iter(new).map(|(uri, meta)| identify_file(&address, uri, meta));
        let mut identified: Vec<InputFile> = identified.buffered(CONCURRENT_FILES).try_collect().await?;
        for file in &mut identified {
            let count = repetitions.entry(file.identity.clone()).or_default();
            if *count > 0 {
                file.identity = digest_parts(&[file.identity.as_bytes(), &count.to_le_bytes()]);
            }
            *count += 1;
        }
        files.append(&mut identified);
    }
    Ok(files)
}

/// The file with its identity: BLAKE3 of its name relative to the fixed part of the source's URI,
/// its size, and its entity tag if it is remote, else its head and tail.
async fn identify_file(address: &Address, uri: String, meta: ObjectMeta) -> Result<InputFile> {
    let name = format!("{}\n{}\n", address.relative(&uri), meta.size);
    let e_tag = meta.e_tag.as_deref().filter(|_| !address.is_local()).and_then(to_strong_entity_tag);
    let content = match meta.e_tag {
        Some(tag) if !address.is_local() => vec![tag.into_bytes().into()],
        _ if address.is_local() => read_ends(&uri, meta.size).await?,
        _ => vec![meta.last_modified.to_rfc3339().into_bytes().into()],
    };
    let parts: Vec<&[u8]> =
        std::iter::once(name.as_bytes()).chain(content.iter().map(AsRef::as_ref)).collect();
    Ok(InputFile { identity: digest_parts(&parts), size: meta.size, uri, e_tag })
}

/// Converts a listed entity tag to the form of requests, with quotes, which Azure omits. Weak tags
/// cannot be used, because they may stay the same when bytes change.
fn to_strong_entity_tag(listed: &str) -> Option<String> {
    (!listed.starts_with("W/")).then(|| format!("\"{}\"", listed.trim_matches('"')))
}

/// The head and the tail of a local file.
async fn read_ends(uri: &str, size: u64) -> Result<Vec<bytes::Bytes>> {
    if size == 0 {
        return Ok(Vec::new());
    }
    let ranges = [0..size.min(END_BYTES), size.saturating_sub(END_BYTES)..size];
    Ok(uri::parse(uri)?.get_ranges(&ranges, None).await?)
}

fn digest_parts(parts: &[&[u8]]) -> String {
    let mut hasher = blake3::Hasher::new();
    parts.iter().for_each(|part| _ = hasher.update(part));
    hasher.finalize().to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::to_strong_entity_tag;

    #[test]
    fn entity_tags_are_sent_as_stores_compare_them() {
        for (listed, asked) in
            [("\"5d41\"", Some("\"5d41\"")), ("0x8D", Some("\"0x8D\"")), ("W/\"5d41\"", None)]
        {
            assert_eq!(to_strong_entity_tag(listed).as_deref(), asked);
        }
    }
}
