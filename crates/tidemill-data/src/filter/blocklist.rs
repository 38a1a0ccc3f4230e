//! Lists of what is refused, each kept as sorted 64-bit hashes: 8 bytes per entry, however long the entry is. A row that
//! is not listed is taken for one that is with a chance of entries / 2^64.

use twox_hash::XxHash3_64;
use url::{ParseError, Url};

use crate::error::Result;
use crate::filter::list_file::for_each_entry;
use crate::filter::sorted_hashes::{digest, sorted};
use crate::one_or_many::OneOrMany;

/// What the entries of a list are compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The row's key.
    Key,
    /// Its URL.
    Url,
    /// The host of its URL, and the domains above that.
    Domain,
    /// The SHA-256 of its encoded image.
    Sha256,
}

/// A loaded list of exact entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocklist {
    part: Part,
    /// Sorted, each once.
    hashes: Vec<u64>,
}

impl Blocklist {
    /// Loads the files of a list. `key` is the configuration key, for messages.
    ///
    /// # Errors
    /// A file that cannot be read, or an entry that is none; the message names file and line.
    pub fn load(part: Part, key: &str, uris: &OneOrMany) -> Result<Self> {
        let mut hashes = Vec::new();
        for_each_entry(key, uris.as_slice(), &mut |entry| {
            hashes.push(part.hash(entry)?);
            Ok(())
        })?;
        Ok(Self { part, hashes: sorted(hashes) })
    }

    /// Whether a key or URL, or the domain of a URL, is listed.
    pub fn has_text(&self, text: &str) -> bool {
        match self.part {
            Part::Domain => {
                let host = host(text).unwrap_or_else(|| written_host(text));
                domains(&host).any(|domain| self.has(XxHash3_64::oneshot(domain.as_bytes())))
            }
            _ => self.has(XxHash3_64::oneshot(text.trim().as_bytes())),
        }
    }

    /// Whether a SHA-256 is listed.
    pub fn has_digest(&self, digest: &[u8; 32]) -> bool {
        self.has(first_eight(digest))
    }

    fn has(&self, hash: u64) -> bool {
        self.hashes.binary_search(&hash).is_ok()
    }

    /// BLAKE3 (hex) of what is listed, whatever the order and the files.
    pub fn digest(&self) -> String {
        digest(&self.hashes)
    }
}

impl Part {
    /// The hash that stands for an entry.
    fn hash(self, entry: &str) -> Result<u64, String> {
        match self {
            Self::Key | Self::Url => Ok(XxHash3_64::oneshot(entry.as_bytes())),
            Self::Domain => {
                let domain = entry.trim_start_matches("*.").trim_matches('.');
                let host = host(domain).ok_or("is no domain, such as example.com")?;
                Ok(XxHash3_64::oneshot(host.as_bytes()))
            }
            Self::Sha256 => {
                let byte = |i: usize| u8::from_str_radix(entry.get(2 * i..2 * i + 2)?, 16).ok();
                let bytes: Option<Vec<u8>> = (0..32).map(byte).collect();
                let bytes = bytes.filter(|_| entry.len() == 64).and_then(|bytes| bytes.try_into().ok());
                Ok(first_eight(&bytes.ok_or("is no SHA-256 of 64 hexadecimal digits")?))
            }
        }
    }
}

fn first_eight(digest: &[u8; 32]) -> u64 {
    digest.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

/// The host of a URL as browsers write it: lower case, international names in their ASCII form. Scheme and path may be
/// missing.
fn host(url: &str) -> Option<String> {
    let url = url.trim();
    let parsed = match Url::parse(url) {
        Ok(parsed) if parsed.has_host() => parsed,
        // `example.com:80/x` is a scheme and a path.
        Ok(_) | Err(ParseError::RelativeUrlWithoutBase) => Url::parse(&format!("http://{url}")).ok()?,
        Err(_) => return None,
    };
    Some(parsed.host_str()?.trim_end_matches('.').to_owned()).filter(|host| !host.is_empty())
}

/// What stands in a host's place in something that is no URL, for its port or its name is impossible.
fn written_host(url: &str) -> String {
    let in_path = ['/', '?', '#', '\\'];
    let behind_scheme = url.split_once("//").filter(|(scheme, _)| !scheme.contains(in_path));
    let authority = behind_scheme.map_or(url, |(_, rest)| rest).split(in_path).next().unwrap_or_default();
    let host = authority.rsplit('@').next().and_then(|host| host.split(':').next()).unwrap_or_default();
    host.trim().trim_end_matches('.').to_lowercase()
}

/// `a.b.c`, `b.c`, `c`.
fn domains(host: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(host), |domain| domain.split_once('.').map(|(_, parent)| parent))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(part: Part, entries: &str) -> Result<Blocklist> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("list.txt");
        std::fs::write(&path, entries).unwrap();
        Blocklist::load(part, "filter.blocklist.test", &OneOrMany::One(path.display().to_string()))
    }

    #[test]
    fn a_domain_covers_the_domains_below_it() {
        let list =
            list(Part::Domain, "# adult\nexample.com\n*.Shop.co.uk\nbücher.de\nhttps://one.org/page\n")
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
            assert_eq!(list.has_text(url), expected, "{url}");
        }
    }

    #[test]
    fn keys_and_urls_match_as_a_whole() {
        let list = list(Part::Url, "\u{feff}https://a.org/x#1\r\n\n  # note\n  spaced  \n").unwrap();
        for (url, expected) in [("https://a.org/x#1", true), (" spaced ", true), ("https://a.org/x", false)] {
            assert_eq!(list.has_text(url), expected, "{url}");
        }
    }

    #[test]
    fn digests_are_read_in_either_case() {
        let digest: [u8; 32] = std::array::from_fn(|i| i as u8 * 7);
        let hex: String = digest.iter().map(|byte| format!("{byte:02X}")).collect();
        let list = list(Part::Sha256, &hex).unwrap();
        assert!(list.has_digest(&digest) && !list.has_digest(&[0; 32]));
    }

    #[test]
    fn the_digest_is_of_the_entries_alone() {
        let base = list(Part::Key, "a\nb\n").unwrap().digest();
        assert_eq!(list(Part::Key, "# comment\nb\n\na\nb").unwrap().digest(), base);
        assert_ne!(list(Part::Key, "a\n").unwrap().digest(), base);
    }

    #[test]
    fn an_entry_that_is_none_is_refused_by_file_and_line() {
        for (part, entry) in
            [(Part::Sha256, "abc"), (Part::Sha256, "ä"), (Part::Domain, "a b"), (Part::Domain, "*.")]
        {
            let error = list(part, &format!("# first line\n{entry}\n")).unwrap_err().to_string();
            assert!(
                error.starts_with("filter.blocklist.test: ") && error.contains("list.txt:2: "),
                "{error}"
            );
        }
    }
}
