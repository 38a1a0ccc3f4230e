//! URLs as messages may show them: whoever holds a signed one, or one with a password, may read what it names, and
//! messages end up in logs and data sets.

/// A path or URI; one of the web without name, password, query and fragment.
pub fn shown(uri: &str) -> String {
    if !crate::http::is_url(uri) {
        return uri.to_owned();
    }
    let (scheme, rest) = uri.split_once("://").unwrap_or_default();
    let (rest, hidden) = match rest.find(['?', '#']) {
        Some(end) => (&rest[..end], if rest[end..].starts_with('?') { "?…" } else { "" }),
        None => (rest, ""),
    };
    let host = rest.find(['/', '\\']).unwrap_or(rest.len());
    let start = rest[..host].rfind('@').map_or(0, |at| at + 1);
    format!("{scheme}://{}{hidden}", &rest[start..])
}

/// A text with every URL in it as it may be [shown].
pub fn redacted(text: &str) -> String {
    let ends = |c: char| c.is_whitespace() || ['"', '`', '<', '>', '(', ')'].contains(&c);
    let mut clean = String::with_capacity(text.len());
    for word in text.split_inclusive(ends) {
        let (word, end) = word.split_at(word.trim_end_matches(ends).len());
        let scheme = word.find("://").unwrap_or_default();
        let before = word[..scheme].trim_end_matches(|c: char| c.is_ascii_alphanumeric());
        clean.extend([before, &shown(&word[before.len()..]), end]);
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_is_shown() {
        for (uri, expected) in [
            ("https://host/a.jpg", "https://host/a.jpg"),
            ("https://host/a.jpg?sig=secret&x=http://y", "https://host/a.jpg?…"),
            ("HTTPS://user:secret@host:8/a@b.jpg#secret", "HTTPS://host:8/a@b.jpg"),
            ("http://user@secret@host?secret", "http://host?…"),
            (
                "abfss://container@account.dfs.core.windows.net/a",
                "abfss://container@account.dfs.core.windows.net/a",
            ),
            ("s3://bucket/a?b#c", "s3://bucket/a?b#c"),
            ("/data/a?b@c#d", "/data/a?b@c#d"),
        ] {
            assert_eq!(shown(uri), expected);
            assert_eq!(
                redacted(&format!("GET {uri} in 3s: (see {uri})")),
                format!("GET {expected} in 3s: (see {expected})")
            );
        }
        assert_eq!(redacted("`http://h/x?secret`: no\nhttp"), "`http://h/x?…`: no\nhttp");
        assert_eq!(redacted("uri=http://h/x?secret"), "uri=http://h/x?…");
    }
}
