//! open_clip's clean-up of captions, `basic_clean` and `whitespace_clean`: ftfy's `fix_text` (mojibake, HTML
//! references, ligatures, full-width forms, curly quotes, control characters; then NFC), `html.unescape` twice, and
//! single spaces. Lower-casing is the tokenizer's business. A port of ftfy 6.3 (Apache-2.0, Robyn Speer).

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::Regex;
use unicode_normalization::UnicodeNormalization;

use crate::caption::clean::html_entities::{unescape, unescape_sure};
use crate::caption::clean::mojibake::{fix_c1_controls, fix_encoding};
use crate::caption::clean::mojibake_detection::compile;

/// Characters that ftfy looks at together, at most.
const SEGMENT: usize = 1_000_000;

/// Rounds after which a text is as fixed as it will be. Real captions need two or three; the bound is against
/// `&amp;amp;amp;...`, of which each round removes one.
const ROUNDS: usize = 64;

/// What open_clip gives its tokenizer before lower-casing.
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

/// Whether there is nothing in the text that any step but the last would change.
fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\t' | b'\n') && byte != b'&')
}

/// White space as Python's `str.split` sees it.
fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\x1c'..='\x1f')
}

/// ftfy's `fix_text` with its default configuration: line by line, and HTML references are left alone from the first
/// line on that holds a `<`.
fn fix_text(text: &str) -> String {
    let mut fixed = String::with_capacity(text.len());
    let mut references = true;
    for line in text.split_inclusive('\n') {
        let mut rest = line;
        while !rest.is_empty() {
            let end = rest.char_indices().nth(SEGMENT).map_or(rest.len(), |(at, _)| at);
            let segment;
            (segment, rest) = rest.split_at(end);
            references &= !segment.contains('<');
            fixed.push_str(&fix_segment(segment, references));
        }
    }
    fixed
}

/// All fixes in their order, until nothing changes any more.
fn fix_segment(segment: &str, references: bool) -> String {
    let mut text = segment.to_owned();
    for _ in 0..ROUNDS {
        let mut fixed = if references { unescape_sure(&text) } else { text.clone() };
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

/// Ligatures of Latin letters, half-width and full-width forms, and curly quotes.
fn fix_characters(text: &str) -> String {
    if text.is_ascii() {
        return text.to_owned();
    }
    let mut fixed = String::with_capacity(text.len());
    for c in text.chars() {
        match (ligature(c), c) {
            (Some(letters), _) => letters.chars().for_each(|c| fixed.push(straight(c))),
            (None, '\u{3000}') => fixed.push(' '),
            (None, '\u{ff01}'..='\u{ffef}') => std::iter::once(c).nfkc().for_each(|c| fixed.push(c)),
            (None, c) => fixed.push(straight(c)),
        }
    }
    fixed
}

fn ligature(c: char) -> Option<&'static str> {
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

/// A straight quote for a curly one.
fn straight(c: char) -> char {
    match c {
        '\u{2bc}' | '\u{2018}'..='\u{201b}' => '\'',
        '\u{201c}'..='\u{201f}' => '"',
        c => c,
    }
}

fn fix_line_breaks(text: &str) -> String {
    text.replace("\r\n", "\n").replace(['\r', '\u{2028}', '\u{2029}', '\u{85}'], "\n")
}

/// Colours and the like on a Unix terminal.
static TERMINAL_ESCAPE: LazyLock<Regex> = LazyLock::new(|| compile(&[r"\x1b\[[\d;]*[a-zA-Z]"]));

/// Control characters without a visible effect.
fn is_control(c: char) -> bool {
    matches!(c,
        '\0'..='\x08' | '\x0b' | '\x0e'..='\x1f' | '\x7f'
        | '\u{206a}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffc}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captions_are_cleaned() {
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
    fn a_hostile_text_takes_bounded_time() {
        open_clip(&format!("&{}", "amp;".repeat(10_000)));
        open_clip(&"Ã".repeat(100_000));
        open_clip(&"Ã©".repeat(100_000));
    }
}
