//! open_clip's clean-up of captions, `basic_clean` and `whitespace_clean`: ftfy's `fix_text`
//! (mojibake, HTML references, ligatures, full-width forms, curly quotes, control characters, then
//! NFC), `html.unescape` twice, and single spaces. The tokenizer converts to lower case. A port of
//! ftfy 6.3 (Apache-2.0, Robyn Speer).

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::Regex;
use unicode_normalization::UnicodeNormalization;

use crate::caption::clean::html_entities::{unescape, unescape_unambiguous};
use crate::caption::clean::mojibake::{fix_c1_controls, fix_encoding};
use crate::caption::clean::mojibake_detection::compile_alternatives;

/// Most characters that ftfy looks at together.
const SEGMENT: usize = 1_000_000;

/// Most rounds of fixes. Real captions need two or three. The bound is against `&amp;amp;amp;...`,
/// from which each round removes one `amp;`.
const ROUNDS: usize = 64;

/// Cleans a caption as open_clip does before lower-casing.
pub fn open_clip(text: &str) -> String {
    let text = match is_plain(text) {
        true => Cow::Borrowed(text),
        false => Cow::Owned(unescape(&unescape(&fix_text(text)))),
    };
    let mut clean = String::with_capacity(text.len());
    for word in text.split(is_space).filter(|word| !word.is_empty()) {
        if !clean.is_empty() {
            clean.push(' ');
        }
        clean.push_str(word);
    }
    clean
}

/// True if only the last step, which joins words by single spaces, can change the text.
fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\t' | b'\n') && byte != b'&')
}

/// White space as Python's `str.split` sees it.
fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\x1c'..='\x1f')
}

/// ftfy's `fix_text` with its default configuration, line by line. From the first line that
/// contains a `<`, HTML references are left as they are.
fn fix_text(text: &str) -> String {
    let mut fixed = String::with_capacity(text.len());
    let mut decode_references = true;
    for line in text.split_inclusive('\n') {
        let mut rest = line;
        while !rest.is_empty() {
            let end = rest.char_indices().nth(SEGMENT).map_or(rest.len(), |(at, _)| at);
            let segment;
            (segment, rest) = rest.split_at(end);
            decode_references &= !segment.contains('<');
            fixed.push_str(&fix_segment(segment, decode_references));
        }
    }
    fixed
}

/// Applies all fixes in order until nothing changes.
fn fix_segment(segment: &str, decode_references: bool) -> String {
    let mut text = segment.to_owned();
    for _ in 0..ROUNDS {
        let mut fixed = if decode_references { unescape_unambiguous(&text) } else { text.clone() };
        if !fixed.is_ascii() {
            fixed = fix_c1_controls(&fix_encoding(fixed));
        }
        fixed = fix_characters(&fixed);
        fixed = fix_line_breaks(&fixed);
        fixed = TERMINAL_ESCAPE.replace_all(&fixed, "").into_owned();
        fixed.retain(|c| !is_control(c));
        if !fixed.is_ascii() {
            fixed = fixed.nfc().collect();
        }
        if fixed == text {
            break;
        }
        text = fixed;
    }
    text
}

/// Expands Latin ligatures, normalises half-width and full-width forms, and straightens curly
/// quotes.
fn fix_characters(text: &str) -> String {
    if text.is_ascii() {
        return text.to_owned();
    }
    let mut fixed = String::with_capacity(text.len());
    for c in text.chars() {
        match (expand_ligature(c), c) {
            (Some(letters), _) => letters.chars().for_each(|c| fixed.push(straighten_quote(c))),
            (None, '\u{3000}') => fixed.push(' '),
            (None, '\u{ff01}'..='\u{ffef}') => std::iter::once(c).nfkc().for_each(|c| fixed.push(c)),
            (None, c) => fixed.push(straighten_quote(c)),
        }
    }
    fixed
}

fn expand_ligature(c: char) -> Option<&'static str> {
    Some(match c {
        'Ĳ' => "IJ",
        'ĳ' => "ij",
        'ŉ' => "ʼn",
        'Ǳ' => "DZ",
        'ǲ' => "Dz",
        'ǳ' => "dz",
        'Ǆ' => "DŽ",
        'ǅ' => "Dž",
        'ǆ' => "dž",
        'Ǉ' => "LJ",
        'ǈ' => "Lj",
        'ǉ' => "lj",
        'Ǌ' => "NJ",
        'ǋ' => "Nj",
        'ǌ' => "nj",
        'ﬀ' => "ff",
        'ﬁ' => "fi",
        'ﬂ' => "fl",
        'ﬃ' => "ffi",
        'ﬄ' => "ffl",
        'ﬅ' => "ſt",
        'ﬆ' => "st",
        _ => return None,
    })
}

/// Replaces a curly quote by a straight one.
fn straighten_quote(c: char) -> char {
    match c {
        '\u{2bc}' | '\u{2018}'..='\u{201b}' => '\'',
        '\u{201c}'..='\u{201f}' => '"',
        c => c,
    }
}

fn fix_line_breaks(text: &str) -> String {
    text.replace("\r\n", "\n").replace(['\r', '\u{2028}', '\u{2029}', '\u{85}'], "\n")
}

/// Terminal escape sequences such as colours.
static TERMINAL_ESCAPE: LazyLock<Regex> = LazyLock::new(|| compile_alternatives(&[r"\x1b\[[\d;]*[a-zA-Z]"]));

/// True for control characters without a visible effect.
fn is_control(c: char) -> bool {
    matches!(c,
        '\0'..='\x08' | '\x0b' | '\x0e'..='\x1f' | '\x7f'
        | '\u{206a}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffc}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captions_are_cleaned_as_by_open_clip() {
        let cases = [
            ("  a  photo\n of\ta cat ", "a photo of a cat"),
            ("â€œSalvador DalÃ\u{ad}â€\u{9d} &amp;amp; caf&eacute;", "\"Salvador Dalí\" & café"),
            ("ＬＯＵＤ　ﬁne ﬂower", "LOUD fine flower"),
            ("\x1b[31mred\x1b[0m\0", "red"),
            ("<b>bold</b> &lt;i&gt;", "<b>bold</b> <i>"),
            ("schÃ¶n, voilÃ  le travail", "schön, voilà le travail"),
            ("", ""),
        ];
        for (text, expected) in cases {
            assert_eq!(open_clip(text), expected, "{text:?}");
        }
    }

    #[test]
    fn hostile_text_takes_bounded_time() {
        open_clip(&format!("&{}", "amp;".repeat(10_000)));
        open_clip(&"Ã".repeat(100_000));
        open_clip(&"Ã©".repeat(100_000));
    }
}
