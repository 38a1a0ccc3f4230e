//! Undoes mojibake, as ftfy's `fix_encoding`. A text with unlikely character sequences is encoded
//! in each single-byte encoding that has all its characters. If the bytes are UTF-8, they are the
//! fixed text. If that fails for the whole text, the substrings that look like UTF-8 are tried on
//! their own.

use std::sync::LazyLock;

use regex::bytes::Regex as ByteRegex;

use crate::caption::clean::charmaps::{CHARMAPS, Utf8Roles, WINDOWS_1252, utf8_roles};
use crate::caption::clean::mojibake_detection::{compile_byte_alternatives, looks_like_mojibake};

/// Undoes all layers of mojibake.
pub fn fix_encoding(mut text: String) -> String {
    while let Some(fixed) = fix_one_layer(&text) {
        if fixed == text {
            break;
        }
        text = fixed;
    }
    text
}

/// Replaces C1 control characters by the characters that Windows-1252 has in their places, as
/// browsers do.
pub fn fix_c1_controls(text: &str) -> String {
    text.chars().map(c1_to_windows_1252).collect()
}

fn c1_to_windows_1252(c: char) -> char {
    match c {
        '\u{80}'..='\u{9f}' => WINDOWS_1252.chars().nth(c as usize - 0x80).unwrap_or(c),
        c => c,
    }
}

/// Undoes one layer; `None` if the text does not change.
fn fix_one_layer(text: &str) -> Option<String> {
    if text.is_ascii() || !looks_like_mojibake(text) {
        return None;
    }
    for charmap in CHARMAPS.iter() {
        let Some(mut bytes) = charmap.encode(text) else { continue };
        if charmap.spaces_hide_a0 && ALTERED_UTF8.is_match(&bytes) {
            bytes = restore_no_break_spaces(&bytes);
        }
        if charmap.sloppy {
            bytes = LOSSY_UTF8.replace_all(&bytes, "\u{fffd}".as_bytes()).into_owned();
        }
        if let Some(fixed) = decode(&bytes) {
            return Some(fixed);
        }
    }
    let fixed = fix_substrings(text);
    if fixed != text {
        return Some(fixed);
    }
    // The text is Latin-1 that was meant to be Windows-1252, if Windows-1252 has all its
    // characters.
    const UNASSIGNED: [char; 5] = ['\u{81}', '\u{8d}', '\u{8f}', '\u{90}', '\u{9d}'];
    if text.chars().all(|c| c <= '\u{ff}' && !UNASSIGNED.contains(&c)) {
        let fixed: String = text.chars().map(c1_to_windows_1252).collect();
        if fixed != text {
            return Some(fixed);
        }
    }
    text.contains(|c| matches!(c, '\u{80}'..='\u{9f}')).then(|| fix_c1_controls(text))
}

/// Restores no-break spaces (byte A0) inside UTF-8 that became spaces. "Ã " that stands alone
/// becomes "à ", with the space kept, unless what follows makes a Portuguese word of it.
fn restore_no_break_spaces(bytes: &[u8]) -> Vec<u8> {
    const JOINED: [&[u8]; 5] = [b" ", b"quele", b"quela", b"quilo", b"s "];
    let mut spaced = Vec::with_capacity(bytes.len());
    for (i, &byte) in bytes.iter().enumerate() {
        let rest = &bytes[i + 1..];
        let alone = byte == b' ' && i > 0 && bytes[i - 1] == 0xc3;
        if alone && !JOINED.iter().any(|joined| rest.starts_with(joined)) {
            spaced.push(0xa0);
        }
        spaced.push(byte);
    }
    let restore = |found: &regex::bytes::Captures| found[0].iter().map(space_to_a0).collect::<Vec<u8>>();
    ALTERED_UTF8.replace_all(&spaced, restore).into_owned()
}

fn space_to_a0(byte: &u8) -> u8 {
    if *byte == b' ' { 0xa0 } else { *byte }
}

/// Decodes UTF-8 with two common deviations: surrogate pairs that are encoded one by one (CESU-8),
/// and Java's encoding of zero.
fn decode(bytes: &[u8]) -> Option<String> {
    let mut text = String::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some(at) = rest.iter().position(|byte| matches!(byte, 0xc0 | 0xed)) {
        text.push_str(std::str::from_utf8(&rest[..at]).ok()?);
        rest = &rest[at..];
        let (c, length) = match *rest {
            [0xc0, 0x80, ..] => ('\0', 2),
            [0xed, a @ 0xa0..=0xaf, b @ 0x80..=0xbf, 0xed, c @ 0xb0..=0xbf, d @ 0x80..=0xbf, ..] => {
                let bits = [(a & 0xf, 16), (b & 0x3f, 10), (c & 0xf, 6), (d & 0x3f, 0)];
                let code: u32 = bits.iter().map(|&(bits, shift)| u32::from(bits) << shift).sum();
                (char::from_u32(code + 0x1_0000)?, 6)
            }
            _ => {
                let three = std::str::from_utf8(rest.get(..3)?).ok()?;
                (three.chars().next()?, 3)
            }
        };
        text.push(c);
        rest = &rest[length..];
    }
    text.push_str(std::str::from_utf8(rest).ok()?);
    Some(text)
}

/// Fixes each substring that looks like misread UTF-8: the character of a first byte and the
/// continuation bytes it requires, repeated. The recursion ends because a substring is shorter than
/// the text.
fn fix_substrings(text: &str) -> String {
    let chars: Vec<(usize, char, Utf8Roles)> =
        text.char_indices().map(|(at, c)| (at, c, utf8_roles(c))).collect();
    let position = |i: usize| chars.get(i).map_or(text.len(), |(at, ..)| *at);
    let mut fixed = String::with_capacity(text.len());
    let mut i = 0;
    while i < chars.len() {
        let after_continuation = i > 0 && chars[i - 1].2.is_strict_continuation;
        let end = if after_continuation { i } else { utf8_run_end(&chars, i) };
        if end == i {
            fixed.push(chars[i].1);
            i += 1;
            continue;
        }
        let part = &text[position(i)..position(end)];
        if part.len() < text.len() && looks_like_mojibake(part) {
            fixed.push_str(&fix_encoding(part.to_owned()));
        } else {
            fixed.push_str(part);
        }
        i = end;
    }
    fixed
}

/// The end of the run of UTF-8-like sequences that starts at `start`; `start` if there is none.
fn utf8_run_end(chars: &[(usize, char, Utf8Roles)], start: usize) -> usize {
    let continuations = |from: usize, count: usize| {
        chars
            .get(from..from + count)
            .is_some_and(|chars| chars.iter().all(|(_, _, utf8_roles)| utf8_roles.is_continuation))
    };
    let mut end = start;
    while let Some((_, _, utf8_roles)) = chars.get(end) {
        let lengths = utf8_roles.starts_sequence.iter().zip(1..);
        let mut lengths = lengths.filter(|(first, count)| **first && continuations(end + 1, *count));
        match lengths.next() {
            Some((_, count)) => end += 1 + count,
            None => break,
        }
    }
    end
}

/// UTF-8 in which a space stands for byte A0, where that gives a likely character.
static ALTERED_UTF8: LazyLock<ByteRegex> = LazyLock::new(|| {
    compile_byte_alternatives(&[
        r"[\xc2\xc3\xc5\xce\xd0\xd9] ",
        r"[\xe2\xe3] [\x80-\x84\x86-\x9f\xa1-\xbf]",
        r"[\xe0-\xe3][\x80-\x84\x86-\x9f\xa1-\xbf] ",
        r"\xf0 [\x80-\xbf][\x80-\xbf]",
        r"\xf0[\x80-\xbf] [\x80-\xbf]",
        r"\xf0[\x80-\xbf][\x80-\xbf] ",
    ])
});

/// UTF-8 in which continuation bytes were lost, to U+FFFD (here 1A) or to a question mark.
static LOSSY_UTF8: LazyLock<ByteRegex> = LazyLock::new(|| {
    compile_byte_alternatives(&[
        r"[\xc2-\xdf]\x1a",
        r"[\xc2-\xc3][?]",
        r"\xed[\xa0-\xaf][\x1a?]\xed[\xb0-\xbf][\x1a?\x80-\xbf]",
        r"\xed[\xa0-\xaf][\x1a?\x80-\xbf]\xed[\xb0-\xbf][\x1a?]",
        r"[\xe0-\xef][\x1a?][\x1a\x80-\xbf]",
        r"[\xe0-\xef][\x1a\x80-\xbf][\x1a?]",
        r"[\xf0-\xf4][\x1a?][\x1a\x80-\xbf][\x1a\x80-\xbf]",
        r"[\xf0-\xf4][\x1a\x80-\xbf][\x1a?][\x1a\x80-\xbf]",
        r"[\xf0-\xf4][\x1a\x80-\xbf][\x1a\x80-\xbf][\x1a?]",
        r"\x1a",
    ])
});
