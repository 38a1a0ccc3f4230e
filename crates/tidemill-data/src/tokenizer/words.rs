//! Splits captions: at special tokens, then, after normalisation, into CLIP's words
//! (`simple_tokenizer.py`, and the byte-level splitting that Hugging Face's pipeline does after
//! it).

use std::ops::ControlFlow;

use unicode_general_category::{GeneralCategory as Category, get_general_category};
// The Hugging Face tokenizers use this crate, and so its version of Unicode, for composition.
use unicode_normalization_alignments::UnicodeNormalization;

use crate::tokenizer::special_tokens::SpecialToken;

/// A part of a text that is split at special tokens.
pub enum Part<'a> {
    /// Id of a special token.
    Special(u32),
    /// Text between special tokens; never empty.
    Text(&'a str),
}

/// Splits a text at special tokens: the leftmost first, and of several at the same position the
/// longest. Stops when `visit` breaks, so the time for a text full of special tokens is bounded.
pub fn split_at_special_tokens(
    text: &str,
    specials: &[SpecialToken],
    mut visit: impl FnMut(Part) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let mut rest = text;
    while !rest.is_empty() {
        let found = specials.iter().filter_map(|token| Some((rest.find(&token.content)?, token)));
        let Some((at, token)) = found.min_by_key(|(at, token)| (*at, usize::MAX - token.content.len()))
        else {
            return visit(Part::Text(rest));
        };
        if at > 0 {
            visit(Part::Text(&rest[..at]))?;
        }
        visit(Part::Special(token.id))?;
        rest = &rest[at + token.content.len()..];
    }
    ControlFlow::Continue(())
}

/// Writes the canonical composition (NFC) of the text to `out`, with each character in lower case.
pub fn normalize(text: &str, out: &mut String) {
    out.clear();
    if text.is_ascii() {
        out.push_str(text);
        out.make_ascii_lowercase();
    } else if text.chars().all(|c| c < '\u{300}') {
        // Characters below the first combining mark are not composed or decomposed.
        out.extend(text.chars().flat_map(char::to_lowercase));
    } else {
        out.extend(text.nfc().flat_map(|(c, _)| c.to_lowercase()));
    }
}

/// The classes of characters that CLIP distinguishes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Letter,
    Number,
    Space,
    Other,
}

/// Classes of the ASCII characters.
const ASCII: [Class; 128] = {
    let mut classes = [Class::Other; 128];
    let mut byte = 0_u8;
    while byte < 128 {
        classes[byte as usize] = match byte {
            b'a'..=b'z' | b'A'..=b'Z' => Class::Letter,
            b'0'..=b'9' => Class::Number,
            b'\t'..=b'\r' | b' ' => Class::Space,
            _ => Class::Other,
        };
        byte += 1;
    }
    classes
};

/// Literals that CLIP's expression takes as one word, and the byte-level expression after it as
/// three.
const MARKERS: [&str; 2] = ["<|startoftext|>", "<|endoftext|>"];
const CONTRACTIONS: [&str; 7] = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d"];

/// The class of the character at a byte offset, and its length in bytes.
fn class_at(text: &str, at: usize) -> (Class, usize) {
    let byte = text.as_bytes()[at];
    if byte.is_ascii() {
        return (ASCII[usize::from(byte)], 1);
    }
    let c = text[at..].chars().next().unwrap_or(char::REPLACEMENT_CHARACTER);
    let class = match get_general_category(c) {
        _ if c.is_whitespace() => Class::Space,
        Category::UppercaseLetter
        | Category::LowercaseLetter
        | Category::TitlecaseLetter
        | Category::ModifierLetter
        | Category::OtherLetter => Class::Letter,
        Category::DecimalNumber | Category::LetterNumber | Category::OtherNumber => Class::Number,
        _ => Class::Other,
    };
    (class, c.len_utf8())
}

/// Calls `visit` with each word of a normalised text, as UTF-8 bytes, until it breaks. A word is
/// the end of a contraction (`'s`), a run of letters, one number, or a run of other characters
/// without white space.
pub fn for_each_word(text: &str, mut visit: impl FnMut(&[u8]) -> ControlFlow<()>) -> ControlFlow<()> {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let (class, length) = class_at(text, at);
        let end = match class {
            Class::Space => {
                at += length;
                continue;
            }
            Class::Number => at + length,
            Class::Letter => end_of_run(text, at + length, Class::Letter),
            Class::Other => match match_literal(&bytes[at..]) {
                Literal::Marker(length) => {
                    let (open, close) = (at + 2, at + length - 2);
                    visit(&bytes[at..open])?;
                    visit(&bytes[open..close])?;
                    at = close;
                    close + 2
                }
                Literal::Contraction(length) => at + length,
                Literal::None => end_of_run(text, at + length, Class::Other),
            },
        };
        visit(&bytes[at..end])?;
        at = end;
    }
    ControlFlow::Continue(())
}

/// The end of the run of characters of a class that continues at `at`.
fn end_of_run(text: &str, mut at: usize, class: Class) -> usize {
    while at < text.len() {
        let (next, length) = class_at(text, at);
        if next != class {
            break;
        }
        at += length;
    }
    at
}

/// A literal at the start of a text, with its length.
enum Literal {
    Marker(usize),
    Contraction(usize),
    None,
}

fn match_literal(rest: &[u8]) -> Literal {
    let starting = |literals: &[&str]| {
        literals.iter().find(|literal| rest.starts_with(literal.as_bytes())).map(|literal| literal.len())
    };
    match rest[0] {
        b'<' => starting(&MARKERS).map_or(Literal::None, Literal::Marker),
        b'\'' => starting(&CONTRACTIONS).map_or(Literal::None, Literal::Contraction),
        _ => Literal::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split_words(text: &str) -> Vec<String> {
        let mut found = Vec::new();
        let _ = for_each_word(text, |word| {
            found.push(String::from_utf8(word.to_vec()).unwrap());
            ControlFlow::Continue(())
        });
        found
    }

    #[test]
    fn words_follow_clips_expressions() {
        let cases: [(&str, &[&str]); 8] = [
            ("", &[]),
            (" a photo\u{3000}of\t", &["a", "photo", "of"]),
            ("it's they've o'brien's", &["it", "'s", "they", "'ve", "o", "'", "brien", "'s"]),
            // A contraction is recognised only where a word may start.
            ("!'s", &["!'", "s"]),
            ("f/2.8 ½x²", &["f", "/", "2", ".", "8", "½", "x", "²"]),
            ("naïve東京😀😀", &["naïve東京", "😀😀"]),
            ("x<|endoftext|>!", &["x", "<|", "endoftext", "|>", "!"]),
            ("!<|endoftext|>!", &["!<|", "endoftext", "|>!"]),
        ];
        for (text, expected) in cases {
            assert_eq!(split_words(text), expected, "{text:?}");
        }
    }

    #[test]
    fn normalising_composes_and_lowercases() {
        let mut out = String::new();
        for (text, expected) in
            [("A Cat", "a cat"), ("É", "é"), ("E\u{301}", "é"), ("Ω\u{2126}", "ωω"), ("İ", "i\u{307}")]
        {
            normalize(text, &mut out);
            assert_eq!(out, expected);
        }
    }
}
