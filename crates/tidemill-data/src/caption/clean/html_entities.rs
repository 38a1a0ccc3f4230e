//! Decodes HTML character references in two ways: as Python's `html.unescape`, and as ftfy, which
//! decodes only those that are unambiguous. The names are those of the HTML standard.

use htmlize::ENTITIES;

use crate::caption::clean::charmaps::WINDOWS_1252;

/// Longest name, in characters, that `html.unescape` looks at.
const LONGEST: usize = 32;
/// Longest name, in characters, that ftfy looks at.
const LONGEST_UNAMBIGUOUS: usize = 24;

/// Python's `html.unescape`: names with or without semicolon, the longest known prefix of an
/// unknown name, and numbers with HTML's exceptions for those that are not characters.
pub fn unescape(text: &str) -> String {
    replace(text, |rest| match rest.strip_prefix('#') {
        Some(number) => numeric(number).map(|(value, length)| (value, 1 + length)),
        None => named(rest),
    })
}

/// ftfy's `unescape_html`: names and numbers that end in a semicolon, and names in capitals
/// (`&EACUTE;`) that have no other meaning.
pub fn unescape_unambiguous(text: &str) -> String {
    replace(text, |rest| {
        let body = rest.strip_prefix('#').unwrap_or(rest);
        let letters =
            body.bytes().take(LONGEST_UNAMBIGUOUS + 1).take_while(u8::is_ascii_alphanumeric).count();
        if !(1..=LONGEST_UNAMBIGUOUS).contains(&letters) || body.as_bytes().get(letters) != Some(&b';') {
            return None;
        }
        let length = rest.len() - body.len() + letters + 1;
        let reference = &rest[..length];
        let value = match reference.starts_with('#') {
            true => Some(unescape(&format!("&{reference}"))).filter(|value| !value.contains(';')),
            false => lookup(reference).map(str::to_owned).or_else(|| capitals(reference)),
        };
        Some((value?, length))
    })
}

/// Replaces references. `find` gets the text behind an ampersand and returns the replacement with
/// the number of bytes that it replaces.
fn replace(text: &str, find: impl Fn(&str) -> Option<(String, usize)>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        match find(rest) {
            Some((value, length)) => {
                out.push_str(&value);
                rest = &rest[length..];
            }
            None => out.push('&'),
        }
    }
    out.push_str(rest);
    out
}

/// Looks up a name, with its semicolon if it has one.
fn lookup(name: &str) -> Option<&'static str> {
    let value = ENTITIES.get(format!("&{name}").as_bytes())?;
    std::str::from_utf8(value).ok()
}

/// Decodes the number after `#`. Returns the text and the length in bytes, `x` and semicolon
/// included.
fn numeric(text: &str) -> Option<(String, usize)> {
    let (digits, radix) = match text.strip_prefix(['x', 'X']) {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    let count = digits.bytes().take_while(|&byte| char::from(byte).is_digit(radix)).count();
    if count == 0 {
        return None;
    }
    let semicolon = usize::from(digits.as_bytes().get(count) == Some(&b';'));
    let value = match u32::from_str_radix(&digits[..count], radix) {
        Ok(number) => character(number).map_or(String::new(), String::from),
        Err(_) => char::REPLACEMENT_CHARACTER.to_string(),
    };
    Some((value, text.len() - digits.len() + count + semicolon))
}

/// The character of a number; `None` for numbers that HTML does not allow.
fn character(number: u32) -> Option<char> {
    match number {
        0 => Some(char::REPLACEMENT_CHARACTER),
        0x80..=0x9f => WINDOWS_1252.chars().nth(number as usize - 0x80),
        1..=8 | 0xb | 0xe..=0x1f | 0x7f | 0xfdd0..=0xfdef => None,
        _ if number & 0xfffe == 0xfffe && number <= 0x10_ffff => None,
        _ => Some(char::from_u32(number).unwrap_or(char::REPLACEMENT_CHARACTER)),
    }
}

fn named(text: &str) -> Option<(String, usize)> {
    let stops = |c: &char| matches!(c, '\t' | '\n' | '\x0c' | ' ' | '<' | '&' | '#' | ';');
    let name: usize = text.chars().take(LONGEST).take_while(|c| !stops(c)).map(char::len_utf8).sum();
    if name == 0 {
        return None;
    }
    if text.as_bytes().get(name) == Some(&b';')
        && let Some(value) = lookup(&text[..=name])
    {
        return Some((value.to_owned(), name + 1));
    }
    let ends = text[..name].char_indices().map(|(at, c)| at + c.len_utf8()).filter(|&end| end > 1).rev();
    ends.into_iter().find_map(|end| Some((lookup(&text[..end])?.to_owned(), end)))
}

/// Decodes a name in capitals if it is unknown as it is and known in lower case.
fn capitals(name: &str) -> Option<String> {
    let value = lookup(&name.to_ascii_lowercase())?;
    let reference = format!("&{name}");
    let unambiguous = !name.contains(|c: char| c.is_ascii_lowercase()) && unescape(&reference) == reference;
    unambiguous.then(|| value.to_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_decoded_as_by_python() {
        let cases = [
            ("a &amp; b &lt;c&gt;", "a & b <c>"),
            ("&ampx &notit; &notin; &amp", "&x ¬it; ∉ &"),
            ("&#39; &#x1F600; &#128; &#xD800; &#0;", "' 😀 € \u{fffd} \u{fffd}"),
            ("&#1114112; &#99999999999; &#11;x &#xfffe;", "\u{fffd} \u{fffd} x "),
            ("& &; &# &#x; &unknown; &é", "& &; &# &#x; &unknown; &é"),
        ];
        for (text, expected) in cases {
            assert_eq!(unescape(text), expected, "{text}");
        }
    }

    #[test]
    fn only_unambiguous_references_are_decoded_as_by_ftfy() {
        let cases = [
            ("this&not that &eacute;", "this&not that é"),
            ("&ntilde; &Ntilde; &NTILDE; &nTILDE;", "ñ Ñ Ñ &nTILDE;"),
            ("BUNDESSTRA&SZLIG;E &LTIMES;", "BUNDESSTRASSE &LTIMES;"),
            ("&#59; &#39;", "&#59; '"),
        ];
        for (text, expected) in cases {
            assert_eq!(unescape_unambiguous(text), expected, "{text}");
        }
    }
}
