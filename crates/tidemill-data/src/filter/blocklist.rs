//! Blocklists of keys, URLs, domains and SHA-256 digests. Entries are kept as sorted 64-bit hashes:
//! 8 bytes per entry of any length. A row that is not listed is taken for a listed one with
//! probability entries / 2^64.

use twox_hash::XxHash3_64;
use url::{ParseError, Url};

use crate::error::Result;
use crate::filter::list_file::for_each_entry;
use crate::filter::sorted_hashes::{digest_hashes, sort_hashes};
use crate::one_or_many::OneOrMany;

/// What the entries of a list are compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// Key of the row.
    Key,
    /// URL of the image.
    Url,
    /// Host of the URL, and the domains above it.
    Domain,
    /// SHA-256 of the encoded image.
    Sha256,
}

/// A loaded list of exact entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocklist {
    kind: EntryKind,
    /// Sorted and unique.
    hashes: Vec<u64>,
}

impl Blocklist {
    /// Loads the files of a list. `key` is the configuration key for messages.
    ///
    /// # Errors
    /// If a file cannot be read or an entry is invalid. The message gives file and line.
    pub fn load(kind: EntryKind, key: &str, uris: &OneOrMany) -> Result<Self> {
        let mut hashes = Vec::new();
        for_each_entry(key, uris.as_slice(), &mut |entry| {
            hashes.push(kind.hash(entry)?);
            Ok(())
        })?;
        Ok(Self { kind, hashes: sort_hashes(hashes) })
    }

    /// True if a key or URL, or the domain of a URL, is listed.
    pub fn contains_text(&self, text: &str) -> bool {
        match self.kind {
            EntryKind::Domain => {
                let host = normalize_host(text).unwrap_or_else(|| host_as_written(text));
                domain_and_parents(&host)
                    .any(|domain| self.contains_hash(XxHash3_64::oneshot(domain.as_bytes())))
            }
            _ => self.contains_hash(XxHash3_64::oneshot(text.trim().as_bytes())),
        }
    }

    /// True if a SHA-256 digest is listed.
    pub fn contains_digest(&self, digest: &[u8; 32]) -> bool {
        self.contains_hash(hash_of_digest(digest))
    }

    fn contains_hash(&self, hash: u64) -> bool {
        self.hashes.binary_search(&hash).is_ok()
    }

    /// BLAKE3 (hex) of the entries, independent of their order and of the files.
    pub fn digest(&self) -> String {
        digest_hashes(&self.hashes)
    }
}

impl EntryKind {
    /// The hash of an entry.
    ///
    /// # Errors
    /// Why the entry is invalid.
    fn hash(self, entry: &str) -> Result<u64, String> {
        match self {
            Self::Key | Self::Url => Ok(XxHash3_64::oneshot(entry.as_bytes())),
            Self::Domain => {
                let domain = entry.trim_start_matches("*.").trim_matches('.');
                let host = normalize_host(domain).ok_or("is no domain, such as example.com")?;
                Ok(XxHash3_64::oneshot(host.as_bytes()))
            }
            Self::Sha256 => {
                let byte = |i: usize| u8::from_str_radix(entry.get(2 * i..2 * i + 2)?, 16).ok();
                let bytes: Option<Vec<u8>> = (0..32).map(byte).collect();
                let bytes = bytes.filter(|_| entry.len() == 64).and_then(|bytes| bytes.try_into().ok());
                Ok(hash_of_digest(&bytes.ok_or("is no SHA-256 of 64 hexadecimal digits")?))
            }
        }
    }
}

fn hash_of_digest(digest: &[u8; 32]) -> u64 {
    digest.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

/// The host of a URL as browsers write it: lower case, international names in ASCII form. Scheme
/// and path may be missing.
fn normalize_host(url: &str) -> Option<String> {
    let url = url.trim();
    let parsed = match Url::parse(url) {
        Ok(parsed) if parsed.has_host() => parsed,
        // The parser takes `example.com:80/x` for a scheme and a path.
        Ok(_) | Err(ParseError::RelativeUrlWithoutBase) => Url::parse(&format!("http://{url}")).ok()?,
        Err(_) => return None,
    };
    Some(parsed.host_str()?.trim_end_matches('.').to_owned()).filter(|host| !host.is_empty())
}

/// The text in place of the host in a URL that cannot be parsed because its port or host is
/// impossible.
fn host_as_written(url: &str) -> String {
    let in_path = ['/', '?', '#', '\\'];
    let behind_scheme = url.split_once("//").filter(|(scheme, _)| !scheme.contains(in_path));
    let authority = behind_scheme.map_or(url, |(_, rest)| rest).split(in_path).next().unwrap_or_default();
    let host = authority.rsplit('@').next().and_then(|host| host.split(':').next()).unwrap_or_default();
    host.trim().trim_end_matches('.').to_lowercase()
}

/// The domain and its parents: `a.b.c`, `b.c`, `c`.
fn domain_and_parents(host: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(host), |domain| domain.split_once('.').map(|(_, parent)| parent))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(kind: EntryKind, entries: &str) -> Result<Blocklist> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("list.txt");
        std::fs::write(&path, entries).unwrap();
        Blocklist::load(kind, "filter.blocklist.test", &OneOrMany::One(path.display().to_string()))
    }

    #[test]
    fn domain_blocks_its_subdomains() {
        let list =
            list(EntryKind::Domain, "# adult\nexample.com\n*.Shop.co.uk\nbücher.de\nhttps://one.org/page\n")
                .unwrap();
        let cases = [
            ("https://example.com/a.jpg", true),
            ("http://img.EXAMPLE.com:8080/a.jpg?x=1", true),
            ("example.com/a.jpg", true),
            ("https://notexample.com/a.jpg", false),
            ("https://example.com.evil.net/", false),
            ("https://a.b.shop.co.uk/x", true),
            ("https://co.uk/x", false),
            ("https://xn--bcher-kva.de/x", true),
            ("https://one.org", true),
            ("https://elsewhere.org/example.com", false),
            ("example.com/r?u=https://elsewhere.org/a.jpg", true),
            ("elsewhere.org/r?u=https://example.com/a.jpg", false),
            ("example.com:8080/a.jpg", true),
            ("//example.com/a.jpg", true),
            ("https:/example.com/x", true),
            ("https:example.com/x", true),
            ("http:\\\\example.com\\x", true),
            ("https://xn--a.example.com/x", true),
            ("xn--a.Example.com./r?u=https://elsewhere.org/", true),
            ("https://xn--a.elsewhere.org/r?u=https://example.com/", false),
            ("https://user:word@example.com:99999/x", true),
            ("https://example.com.elsewhere.org:99999/x", false),
            ("", false),
            ("no url at all", false),
        ];
        for (url, expected) in cases {
            assert_eq!(list.contains_text(url), expected, "{url}");
        }
    }

    #[test]
    fn keys_and_urls_match_exactly() {
        let list = list(EntryKind::Url, "\u{feff}https://a.org/x#1\r\n\n  # note\n  spaced  \n").unwrap();
        for (url, expected) in [("https://a.org/x#1", true), (" spaced ", true), ("https://a.org/x", false)] {
            assert_eq!(list.contains_text(url), expected, "{url}");
        }
    }

    #[test]
    fn sha256_digests_are_case_insensitive() {
        let digest: [u8; 32] = std::array::from_fn(|i| i as u8 * 7);
        let hex: String = digest.iter().map(|byte| format!("{byte:02X}")).collect();
        let list = list(EntryKind::Sha256, &hex).unwrap();
        assert!(list.contains_digest(&digest) && !list.contains_digest(&[0; 32]));
    }

    #[test]
    fn digest_depends_on_entries_only() {
        let base = list(EntryKind::Key, "a\nb\n").unwrap().digest();
        assert_eq!(list(EntryKind::Key, "# comment\nb\n\na\nb").unwrap().digest(), base);
        assert_ne!(list(EntryKind::Key, "a\n").unwrap().digest(), base);
    }

    #[test]
    fn invalid_entries_are_refused_with_file_and_line() {
        for (kind, entry) in [
            (EntryKind::Sha256, "abc"),
            (EntryKind::Sha256, "ä"),
            (EntryKind::Domain, "a b"),
            (EntryKind::Domain, "*."),
        ] {
            let error = list(kind, &format!("# first line\n{entry}\n")).unwrap_err().to_string();
            assert!(
                error.starts_with("filter.blocklist.test: ") && error.contains("list.txt:2: "),
                "{error}"
            );
        }
    }
}
