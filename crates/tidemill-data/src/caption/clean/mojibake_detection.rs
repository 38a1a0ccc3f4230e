//! Whether a text looks like mojibake: ftfy's list of neighbouring characters that hardly ever occur together in what
//! people write, but often in UTF-8 that was read in another encoding.

use std::sync::LazyLock;

use regex::{Regex, bytes};

/// Whether some of the text is probably mojibake.
pub fn is_bad(text: &str) -> bool {
    UNLIKELY.is_match(text)
}

/// A constant expression out of alternatives.
#[expect(clippy::expect_used, reason = "every expression is constant, and the tests compile it")]
pub fn compile<S: AsRef<str>>(alternatives: &[S]) -> Regex {
    let alternatives: Vec<&str> = alternatives.iter().map(AsRef::as_ref).collect();
    Regex::new(&alternatives.join("|")).expect("the expression is valid")
}

/// As [`compile`], over bytes.
#[expect(clippy::expect_used, reason = "every expression is constant, and the tests compile it")]
pub fn compile_bytes(alternatives: &[&str]) -> bytes::Regex {
    let expression = bytes::RegexBuilder::new(&alternatives.join("|")).unicode(false).build();
    expression.expect("the expression is valid")
}

// The categories of characters, as they stand between the brackets of a class.

/// Found in mojibake and out of it.
const COMMON: &str = "\u{a0}\u{ad}\u{b4}·–-―’…";
/// Control characters that nobody uses.
const C1: &str = "\u{80}-\u{9f}";
/// Almost only found in mojibake.
const BAD: &str = "¤¦\u{a8}ª¬\u{af}\u{b8}ºƒ\u{2c6}\u{2c7}\u{2d8}\u{2db}\u{2dc}†‡‰⌐◊\u{fffd}";
const LAW: &str = "§¶";
const CURRENCY: &str = "¢£¥₧€";
const START: &str = "¡©«¿\u{384}\u{385}‘‚“„•‹\u{f8ff}";
const END: &str = "®»\u{2dd}”›™";
const NUMERIC: &str = "±-³µ¹¼-¾×÷⁄№∂∆∏∑√∞∩∫≈≠≡≤≥";
/// Letters that also make faces.
const KAOMOJI: &str = "°Ò-ÖÙ-Üò-öø-üŌŐŪŲ";
const UPPER: &str = "À-ÑØÜÝĀĂĄĆČĎĐĒĖĘĚĞĢĪİĶĹĻĽŁŃŅŇŒŘŚŞŠŢŤŮŰŸŹŻŽҐ";
const LOWER: &str = "ß-ñüāăąćčďđēėęěğģīįķĺļľłœŕśşšťźżžґﬁﬂ";
const UPPER_COMMON: &str = "ÞΆΈ-ΊΌΎΏΑ-ΫЁ-Я";
const LOWER_COMMON: &str = "ά-ωа-џ";
const BOX: &str = "│┌┐┘├┤┬┼═-╬▀▄█▌▐-▓";

/// White space and word characters as Python sees them.
const SPACE: &str = r"\s\x1c-\x1f";
const WORD: &str = r"\p{L}\p{N}_";

/// The unlikely sequences.
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
        // Windows-1252 of two bytes.
        format!("[ÂÃÎÐ][€œŠš¢£Ÿž\u{a0}\u{ad}®©°·»{START}{END}–—\u{b4}]"),
        "×[²³]".into(),
        // Arabic in Windows-1252: common characters, so four of them.
        format!(
            "[ØÙ][{COMMON}{CURRENCY}{BAD}{NUMERIC}{START}ŸŠ®°µ»][ØÙ][{COMMON}{CURRENCY}{BAD}{NUMERIC}{START}ŸŠ®°µ»]"
        ),
        // The alphabets of South Asia in Windows-1252.
        "à[²µ¹¼½¾]".into(),
        // MacRoman.
        "√[±∂†≠®™\u{b4}≤≥¥µø]".into(),
        "≈[°¢]".into(),
        "‚Ä[ìîïòôúùû†°¢π]".into(),
        "‚[âó][àä°ê]".into(),
        // Windows-1251: punctuation, Latin or Cyrillic letters, and a second layer over Windows-1252.
        "вЂ".into(),
        format!("[ВГРС][{C1}{BAD}{START}{END}{CURRENCY}°µ][ВГРС]"),
        "ГўВЂВ.[A-Za-z ]".into(),
        // "à" and "á" in Windows-1252, and the no-break space.
        "Ã[\u{a0}¡]".into(),
        format!("[a-z][{SPACE}]?[ÃÂ] "),
        "^[ÃÂ] ".into(),
        // "Â" before the very character that it encodes.
        format!("[a-z.,?!{END}]Â[ {START}{END}]"),
        // Windows-1253: punctuation, Latin or Greek letters.
        "β€[™\u{a0}Ά\u{ad}®°]".into(),
        format!("[ΒΓΞΟ][{C1}{BAD}{START}{END}{CURRENCY}°][ΒΓΞΟ]"),
        // Windows-1257: punctuation.
        "ā€".into(),
    ];
    compile(&sequences)
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mojibake_is_told_from_what_people_write() {
        for bad in ["schÃ¶n", "â€œquotedâ€\u{9d}", "РџСЂРёРІРµС‚", "l’Ã©tÃ©", "Ã la carte"]
        {
            assert!(is_bad(bad), "{bad}");
        }
        for good in ["", "plain", "schön", "“quoted”", "Привет", "l’été", "à la carte", "5 €", "東京", "½ ×"]
        {
            assert!(!is_bad(good), "{good}");
        }
    }
}
