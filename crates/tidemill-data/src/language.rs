//! Which language a caption is in, by the `whatlang` crate: trigrams and scripts, no model. Short captions give it little to
//! go by, and its confidence says so.

use whatlang::Lang;

/// The language of a text as ISO 639-1 code, and how sure that is, from 0 to 1. `None` if it has no letters to go by.
pub fn caption_language(text: &str) -> Option<(&'static str, f64)> {
    let info = whatlang::detect(text)?;
    Some((two_letters(info.lang()), info.confidence()))
}

/// ISO 639-1 for the crate's ISO 639-3. Javanese, Latin and the others each have one.
fn two_letters(lang: Lang) -> &'static str {
    CODES.iter().find(|(three, _)| *three == lang.code()).map_or(lang.code(), |(_, two)| two)
}

/// ISO 639-3 and ISO 639-1 of every language that `whatlang` knows.
#[rustfmt::skip]
const CODES: [(&str, &str); 70] = [
    ("afr", "af"), ("aka", "ak"), ("amh", "am"), ("ara", "ar"), ("aze", "az"), ("bel", "be"), ("ben", "bn"),
    ("bul", "bg"), ("cat", "ca"), ("ces", "cs"), ("cmn", "zh"), ("cym", "cy"), ("dan", "da"), ("deu", "de"),
    ("ell", "el"), ("eng", "en"), ("epo", "eo"), ("est", "et"), ("fin", "fi"), ("fra", "fr"), ("guj", "gu"),
    ("heb", "he"), ("hin", "hi"), ("hrv", "hr"), ("hun", "hu"), ("hye", "hy"), ("ind", "id"), ("ita", "it"),
    ("jav", "jv"), ("jpn", "ja"), ("kan", "kn"), ("kat", "ka"), ("khm", "km"), ("kor", "ko"), ("lat", "la"),
    ("lav", "lv"), ("lit", "lt"), ("mal", "ml"), ("mar", "mr"), ("mkd", "mk"), ("mya", "my"), ("nep", "ne"),
    ("nld", "nl"), ("nob", "nb"), ("ori", "or"), ("pan", "pa"), ("pes", "fa"), ("pol", "pl"), ("por", "pt"),
    ("ron", "ro"), ("rus", "ru"), ("sin", "si"), ("slk", "sk"), ("slv", "sl"), ("sna", "sn"), ("spa", "es"),
    ("srp", "sr"), ("swe", "sv"), ("tam", "ta"), ("tel", "te"), ("tgl", "tl"), ("tha", "th"), ("tuk", "tk"),
    ("tur", "tr"), ("ukr", "uk"), ("urd", "ur"), ("uzb", "uz"), ("vie", "vi"), ("yid", "yi"), ("zul", "zu"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_sentences_are_told_apart() {
        let cases = [
            ("a photograph of a small dog that is running along the beach", Some("en")),
            ("ein kleiner Hund, der auf einer grünen Wiese hinter dem Haus spielt", Some("de")),
            ("Старый рыбак чинит сети на берегу, а за его спиной садится солнце", Some("ru")),
            ("海辺を走っている小さな犬の写真です", Some("ja")),
            ("12345 !!", None),
        ];
        for (text, expected) in cases {
            assert_eq!(caption_language(text).map(|(code, _)| code), expected, "{text}");
        }
    }

    #[test]
    fn every_language_has_a_code_of_two_letters() {
        for lang in Lang::all() {
            assert_eq!(two_letters(*lang).len(), 2, "{lang:?}");
        }
    }
}
