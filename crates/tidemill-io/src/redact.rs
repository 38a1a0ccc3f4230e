//! Removes secrets from URLs in messages, which end up in logs and datasets. Whoever knows a signed
//! URL, or one with a password, can read the file that it names.

/// Whether a URI names a file on a web server.
pub fn is_http_url(uri: &str) -> bool {
    let scheme = uri.split_once("://").map_or("", |(scheme, _)| scheme);
    ["http", "https"].iter().any(|http| scheme.eq_ignore_ascii_case(http))
}

/// Removes user name, password, query and fragment from an `http(s)` URL. Other paths and URIs stay
/// the same.
pub fn redact_uri(uri: &str) -> String {
    if !is_http_url(uri) {
        return uri.to_owned();
    }
    let (scheme, rest) = uri.split_once("://").unwrap_or_default();
    let (rest, query) = match rest.find(['?', '#']) {
        Some(end) => (&rest[..end], if rest[end..].starts_with('?') { "?…" } else { "" }),
        None => (rest, ""),
    };
    let authority_end = rest.find(['/', '\\']).unwrap_or(rest.len());
    let host_start = rest[..authority_end].rfind('@').map_or(0, |user_end| user_end + 1);
    format!("{scheme}://{}{query}", &rest[host_start..])
}

/// Applies [`redact_uri`] to every URL in a text.
pub fn redact_text(text: &str) -> String {
    let is_delimiter = |c: char| c.is_whitespace() || ['"', '`', '<', '>', '(', ')'].contains(&c);
    let mut redacted = String::with_capacity(text.len());
    for word in text.split_inclusive(is_delimiter) {
        let (word, delimiters) = word.split_at(word.trim_end_matches(is_delimiter).len());
        let scheme_end = word.find("://").unwrap_or_default();
        let before = word[..scheme_end].trim_end_matches(|c: char| c.is_ascii_alphanumeric());
        redacted.extend([before, &redact_uri(&word[before.len()..]), delimiters]);
    }
    redacted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_removed_from_urls() {
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
            assert_eq!(redact_uri(uri), expected);
            assert_eq!(
                redact_text(&format!("GET {uri} in 3s: (see {uri})")),
                format!("GET {expected} in 3s: (see {expected})")
            );
        }
        assert_eq!(redact_text("`http://h/x?secret`: no\nhttp"), "`http://h/x?…`: no\nhttp");
        assert_eq!(redact_text("uri=http://h/x?secret"), "uri=http://h/x?…");
    }
}
