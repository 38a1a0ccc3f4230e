//! From a caption to words: cutting at special tokens, normalisation, and CLIP's idea of a word
//! (`simple_tokenizer.py`, and the byte-level splitting that Hugging Face's pipeline does after it).

use std::ops::ControlFlow;

use unicode_general_category::{GeneralCategory as Category, get_general_category};
// The crate, and so the version of Unicode, with which the Hugging Face tokenizers compose.
use unicode_normalization_alignments::UnicodeNormalization;

use crate::tokenizer::folder::SpecialToken;

/// A part of a text that is cut at special tokens.
pub enum Part<'a> {
    /// The id of a special token.
    Special(u32),
    /// What is between two of them; never empty.
    Text(&'a str),
}

/// Cuts a text at special tokens, the leftmost first and of those the longest. Stops when `visit` breaks, so that a
/// text full of special tokens is not searched for ever.
pub fn split(
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

/// Canonical composition (NFC), then lower case character by character, into `out`.
pub fn normalize(text: &str, out: &mut String) {
    out.clear();
    if text.is_ascii() {
        out.push_str(text);
        out.make_ascii_lowercase();
    } else if text.chars().all(|c| c < '\u{300}') {
        // Nothing below the first combining mark composes or decomposes.
        out.extend(text.chars().flat_map(char::to_lowercase));
    } else {
        out.extend(text.nfc().flat_map(|(c, _)| c.to_lowercase()));
    }
}

/// What CLIP tells apart.
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

/// The literals that CLIP's expression takes as one word, and the byte-level one after it as three.
const MARKERS: [&str; 2] = ["<|startoftext|>", "<|endoftext|>"];
const CONTRACTIONS: [&str; 7] = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d"];

/// The class of the character at a byte position within the text, and its length in bytes.
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

/// Calls `visit` with each word of a normalised text, as UTF-8 bytes, until it breaks. A word is a contraction's end
/// (`'s`), letters, one number, or a run of anything else but white space.
pub fn words(text: &str, mut visit: impl FnMut(&[u8]) -> ControlFlow<()>) -> ControlFlow<()> {
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
            Class::Letter => run(text, at + length, Class::Letter),
            Class::Other => match literal(&bytes[at..]) {
                Literal::Marker(length) => {
                    let (open, close) = (at + 2, at + length - 2);
                    visit(&bytes[at..open])?;
                    visit(&bytes[open..close])?;
                    at = close;
                    close + 2
                }
                Literal::Contraction(length) => at + length,
                Literal::None => run(text, at + length, Class::Other),
            },
        };
        visit(&bytes[at..end])?;
        at = end;
    }
    ControlFlow::Continue(())
}

/// The end of the run of one class that goes on at `at`.
fn run(text: &str, mut at: usize, class: Class) -> usize {
    while at < text.len() {
        let (next, length) = class_at(text, at);
        if next != class {
            break;
        }
        at += length;
    }
    at
}

/// A literal that the expressions know, with its length.
enum Literal {
    Marker(usize),
    Contraction(usize),
    None,
}

fn literal(rest: &[u8]) -> Literal {
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

    fn cut(text: &str) -> Vec<String> {
        let mut found = Vec::new();
        let _ = words(text, |word| {
            found.push(String::from_utf8(word.to_vec()).unwrap());
            ControlFlow::Continue(())
        });
        found
    }

    #[test]
    fn words_are_those_of_clips_expressions() {
        let cases: [(&str, &[&str]); 8] = [
            ("", &[]),
            (" a photo\u{3000}of\t", &["a", "photo", "of"]),
            ("it's they've o'brien's", &["it", "'s", "they", "'ve", "o", "'", "brien", "'s"]),
            // A contraction counts only where a word may begin.
            ("!'s", &["!'", "s"]),
            ("f/2.8 ½x²", &["f", "/", "2", ".", "8", "½", "x", "²"]),
            ("naïve東京😀😀", &["naïve東京", "😀😀"]),
            ("x<|endoftext|>!", &["x", "<|", "endoftext", "|>", "!"]),
            ("!<|endoftext|>!", &["!<|", "endoftext", "|>!"]),
        ];
        for (text, expected) in cases {
            assert_eq!(cut(text), expected, "{text:?}");
        }
    }

    #[test]
    fn normalising_composes_and_lowers() {
        let mut out = String::new();
        for (text, expected) in
            [("A Cat", "a cat"), ("É", "é"), ("E\u{301}", "é"), ("Ω\u{2126}", "ωω"), ("İ", "i\u{307}")]
        {
            normalize(text, &mut out);
            assert_eq!(out, expected);
        }
    }
}
