//! Which files a source has, each with the identity that its units and sample ids are made of. The identity depends
//! on what a file holds and what it is called, not on where it lies, so that a moved or copied data set stays the same.

use std::collections::{HashMap, HashSet};

use futures::{StreamExt, TryStreamExt};
use object_store::ObjectMeta;
use tidemill_io::{Address, block_on, uri};

use crate::error::Result;
use crate::source::units::InputFile;

/// Bytes of a local file's head, and of its tail, that count for its identity. Of a Parquet file the tail has the
/// footer with the place, size and statistics of every column chunk; reading a whole source just to name it would
/// take as long as reading it.
const ENDS: u64 = 64 << 10;

/// Files looked into at the same time.
const IN_FLIGHT: usize = 16;

/// Every file of every URI that is to be kept, once, with its identity: in the order of the URIs, and by path within
/// one of them.
///
/// # Errors
/// If a URI cannot be understood, names nothing, or cannot be read.
pub fn list(uris: &[String], keep: impl Fn(&str) -> bool) -> Result<Vec<InputFile>> {
    block_on(list_all(uris, keep))
}

async fn list_all(uris: &[String], keep: impl Fn(&str) -> bool) -> Result<Vec<InputFile>> {
    let mut files: Vec<InputFile> = Vec::new();
    let mut seen = HashSet::new();
    let mut twins: HashMap<String, u64> = HashMap::new();
    for uri in uris {
        let address = uri::parse(uri)?;
        let new =
            address.expand().await?.into_iter().filter(|(uri, _)| keep(uri) && seen.insert(uri.clone()));
        let new: Vec<_> = new.collect();
        let identified = futures::stream::iter(new).map(|(uri, meta)| identified(&address, uri, meta));
        let mut identified: Vec<InputFile> = identified.buffered(IN_FLIGHT).try_collect().await?;
        for file in &mut identified {
            let twin = twins.entry(file.identity.clone()).or_default();
            if *twin > 0 {
                file.identity = digest(&[file.identity.as_bytes(), &twin.to_le_bytes()]);
            }
            *twin += 1;
        }
        files.append(&mut identified);
    }
    Ok(files)
}

/// The file with its identity: BLAKE3 of its name relative to what is fixed in the source's URI, its size, and its
/// entity tag if it is remote, or else its head and tail.
async fn identified(address: &Address, uri: String, meta: ObjectMeta) -> Result<InputFile> {
    let name = format!("{}\n{}\n", address.relative(&uri), meta.size);
    let e_tag = meta.e_tag.as_deref().filter(|_| !address.is_local()).and_then(strong);
    let content = match meta.e_tag {
        Some(tag) if !address.is_local() => vec![tag.into_bytes().into()],
        _ if address.is_local() => ends(&uri, meta.size).await?,
        _ => vec![meta.last_modified.to_rfc3339().into_bytes().into()],
    };
    let parts: Vec<&[u8]> =
        std::iter::once(name.as_bytes()).chain(content.iter().map(AsRef::as_ref)).collect();
    Ok(InputFile { identity: digest(&parts), size: meta.size, uri, e_tag })
}

/// A listed entity tag as a request can name it, which has quotes that Azure lists it without. A weak one may not be
/// asked for: it stays the same where bytes change.
fn strong(listed: &str) -> Option<String> {
    (!listed.starts_with("W/")).then(|| format!("\"{}\"", listed.trim_matches('"')))
}

/// The head and the tail of a local file.
async fn ends(uri: &str, size: u64) -> Result<Vec<bytes::Bytes>> {
    if size == 0 {
        return Ok(Vec::new());
    }
    let ranges = [0..size.min(ENDS), size.saturating_sub(ENDS)..size];
    Ok(uri::parse(uri)?.get_ranges(&ranges, None).await?)
}

fn digest(parts: &[&[u8]]) -> String {
    let mut hasher = blake3::Hasher::new();
    parts.iter().for_each(|part| _ = hasher.update(part));
    hasher.finalize().to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::strong;

    #[test]
    fn entity_tags_are_asked_for_as_stores_compare_them() {
        for (listed, asked) in
            [("\"5d41\"", Some("\"5d41\"")), ("0x8D", Some("\"0x8D\"")), ("W/\"5d41\"", None)]
        {
            assert_eq!(strong(listed).as_deref(), asked);
        }
    }
}
