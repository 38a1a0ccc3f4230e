//! Detects mojibake by ftfy's heuristic: neighbouring characters that people hardly ever write, but
//! that often result from reading UTF-8 in another encoding.

use std::sync::LazyLock;

use regex::{Regex, bytes};

/// True if a part of the text is probably mojibake.
pub fn looks_like_mojibake(text: &str) -> bool {
    UNLIKELY.is_match(text)
}

/// Compiles constant alternatives to one regular expression.
#[expect(clippy::expect_used, reason = "every expression is constant, and the tests compile it")]
pub fn compile_alternatives<S: AsRef<str>>(alternatives: &[S]) -> Regex {
    let alternatives: Vec<&str> = alternatives.iter().map(AsRef::as_ref).collect();
    Regex::new(&alternatives.join("|")).expect("the expression is valid")
}

/// Compiles constant alternatives to one regular expression over bytes.
#[expect(clippy::expect_used, reason = "every expression is constant, and the tests compile it")]
pub fn compile_byte_alternatives(alternatives: &[&str]) -> bytes::Regex {
    let expression = bytes::RegexBuilder::new(&alternatives.join("|")).unicode(false).build();
    expression.expect("the expression is valid")
}

// Categories of characters, in the syntax of a character class without its brackets.

/// Characters that occur in mojibake and in normal text.
const COMMON: &str = "\u{a0}\u{ad}\u{b4}·–-―’…";
/// C1 control characters, which are not used in text.
const C1: &str = "\u{80}-\u{9f}";
/// Characters that occur almost only in mojibake.
const BAD: &str = "¤¦\u{a8}ª¬\u{af}\u{b8}ºƒ\u{2c6}\u{2c7}\u{2d8}\u{2db}\u{2dc}†‡‰⌐◊\u{fffd}";
const LAW: &str = "§¶";
const CURRENCY: &str = "¢£¥₧€";
const START: &str = "¡©«¿\u{384}\u{385}‘‚“„•‹\u{f8ff}";
const END: &str = "®»\u{2dd}”›™";
const NUMERIC: &str = "±-³µ¹¼-¾×÷⁄№∂∆∏∑√∞∩∫≈≠≡≤≥";
/// Letters that are also used in kaomoji (text faces).
const KAOMOJI: &str = "°Ò-ÖÙ-Üò-öø-üŌŐŪŲ";
const UPPER: &str = "À-ÑØÜÝĀĂĄĆČĎĐĒĖĘĚĞĢĪİĶĹĻĽŁŃŅŇŒŘŚŞŠŢŤŮŰŸŹŻŽҐ";
const LOWER: &str = "ß-ñüāăąćčďđēėęěğģīįķĺļľłœŕśşšťźżžґﬁﬂ";
const UPPER_COMMON: &str = "ÞΆΈ-ΊΌΎΏΑ-ΫЁ-Я";
const LOWER_COMMON: &str = "ά-ωа-џ";
const BOX: &str = "│┌┐┘├┤┬┼═-╬▀▄█▌▐-▓";

/// White space and word characters as Python's `re` defines them.
const SPACE: &str = r"\s\x1c-\x1f";
const WORD: &str = r"\p{L}\p{N}_";

/// Sequences of characters that are unlikely in normal text.
static UNLIKELY: LazyLock<Regex> = LazyLock::new(|| {
    let sequences = [
        format!("[{C1}]"),
        format!("[{BAD}{LOWER}{UPPER}{BOX}{START}{END}{CURRENCY}{NUMERIC}{LAW}][{BAD}]"),
        format!("[a-zA-Z][{LOWER_COMMON}{UPPER_COMMON}][{BAD}]"),
        format!("[{BAD}][{LOWER}{UPPER}{BOX}{START}{END}{CURRENCY}{NUMERIC}{LAW}]"),
        format!("[{LOWER}{LOWER_COMMON}{BOX}{END}{CURRENCY}{NUMERIC}][{UPPER}]"),
        format!("[{BOX}{END}{CURRENCY}{NUMERIC}][{LOWER}]"),
        format!("[{LOWER}{BOX}{END}][{CURRENCY}]"),
        format!("[{SPACE}][{UPPER}][{CURRENCY}]"),
        format!("[{UPPER}{BOX}][{NUMERIC}{LAW}]"),
        format!("[{LOWER}{UPPER}{BOX}{CURRENCY}{END}][{START}][{NUMERIC}]"),
        format!("[{LOWER}{UPPER}{CURRENCY}{NUMERIC}{BOX}{LAW}][{END}][{START}]"),
        format!("[{CURRENCY}{NUMERIC}{BOX}][{START}]"),
        format!("[a-z][{UPPER}][{START}{CURRENCY}]"),
        format!("[{BOX}][{KAOMOJI}]"),
        format!("[{LOWER}{UPPER}{CURRENCY}{NUMERIC}{START}{END}{LAW}][{BOX}]"),
        format!("[{BOX}][{END}]"),
        format!("[{LOWER}{UPPER}][{START}{END}][{WORD}]"),
        // The ligature, unless a plain Latin letter follows.
        "[Œœ][^A-Za-z]".into(),
        format!("[{UPPER}]°"),
        // Two-byte sequences read as Windows-1252.
        format!("[ÂÃÎÐ][€œŠš¢£Ÿž\u{a0}\u{ad}®©°·»{START}{END}–—\u{b4}]"),
        "×[²³]".into(),
        // Arabic read as Windows-1252. The characters are common, so four of them are required.
        format!(
            "[ØÙ][{COMMON}{CURRENCY}{BAD}{NUMERIC}{START}ŸŠ®°µ»][ØÙ][{COMMON}{CURRENCY}{BAD}{NUMERIC}{START}ŸŠ®°µ»]"
        ),
        // South Asian scripts read as Windows-1252.
        "à[²µ¹¼½¾]".into(),
        // Text read as MacRoman.
        "√[±∂†≠®™\u{b4}≤≥¥µø]".into(),
        "≈[°¢]".into(),
        "‚Ä[ìîïòôúùû†°¢π]".into(),
        "‚[âó][àä°ê]".into(),
        // Text read as Windows-1251: punctuation, Latin or Cyrillic letters, and a second layer of
        // Windows-1252.
        "вЂ".into(),
        format!("[ВГРС][{C1}{BAD}{START}{END}{CURRENCY}°µ][ВГРС]"),
        "ГўВЂВ.[A-Za-z ]".into(),
        // "à", "á" and the no-break space read as Windows-1252.
        "Ã[\u{a0}¡]".into(),
        format!("[a-z][{SPACE}]?[ÃÂ] "),
        "^[ÃÂ] ".into(),
        // "Â" before the character that it encodes.
        format!("[a-z.,?!{END}]Â[ {START}{END}]"),
        // Text read as Windows-1253: punctuation, Latin or Greek letters.
        "β€[™\u{a0}Ά\u{ad}®°]".into(),
        format!("[ΒΓΞΟ][{C1}{BAD}{START}{END}{CURRENCY}°][ΒΓΞΟ]"),
        // Text read as Windows-1257: punctuation.
        "ā€".into(),
    ];
    compile_alternatives(&sequences)
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mojibake_is_distinguished_from_normal_text() {
        for bad in ["schÃ¶n", "â€œquotedâ€\u{9d}", "РџСЂРёРІРµС‚", "l’Ã©tÃ©", "Ã la carte"]
        {
            assert!(looks_like_mojibake(bad), "{bad}");
        }
        for good in ["", "plain", "schön", "“quoted”", "Привет", "l’été", "à la carte", "5 €", "東京", "½ ×"]
        {
            assert!(!looks_like_mojibake(good), "{good}");
        }
    }
}
