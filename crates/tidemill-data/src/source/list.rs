//! Which files a source has, each with the identity that its sample ids are made of.

use std::collections::HashSet;

use super::InputFile;
use crate::error::Result;
use crate::uri;

/// Every file of every URI that is to be kept, once, with its identity.
pub async fn list(uris: &[String], keep: impl Fn(&str) -> bool) -> Result<Vec<InputFile>> {
    let mut files: Vec<InputFile> = Vec::new();
    let mut seen = HashSet::new();
    for uri in uris {
        let location = uri::parse(uri)?;
        for (uri, meta) in location.expand().await? {
            if !keep(&uri) || !seen.insert(uri.clone()) {
                continue;
            }
            // An inode is part of local entity tags, so that they change when a file is merely copied.
            let version = match meta.e_tag {
                Some(tag) if !location.is_local() => tag,
                _ => meta.last_modified.to_rfc3339(),
            };
            let identity = blake3::hash(format!("{uri}\n{}\n{version}", meta.size).as_bytes()).to_hex();
            files.push(InputFile { uri, size: meta.size, identity: identity.to_string() });
        }
    }
    Ok(files)
}
