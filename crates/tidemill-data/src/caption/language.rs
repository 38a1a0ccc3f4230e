//! Language detection for captions, by script and letter trigrams.

use whatlang::Lang;

/// Detects a text's language: its ISO 639-1 code, and the confidence from 0 to 1. `None` for text
/// without letters. The confidence is low for captions of a few words, in any language.
pub fn detect_language(text: &str) -> Option<(&'static str, f64)> {
    let found = whatlang::detect(text)?;
    Some((iso_639_1(found.lang()), found.confidence()))
}

/// The codes that [`detect_language`] returns, in alphabetical order.
pub fn language_codes() -> Vec<&'static str> {
    let mut codes: Vec<_> = Lang::all().iter().map(|language| iso_639_1(*language)).collect();
    codes.sort_unstable();
    codes
}

fn iso_639_1(language: Lang) -> &'static str {
    match language {
        Lang::Afr => "af",
        Lang::Aka => "ak",
        Lang::Amh => "am",
        Lang::Ara => "ar",
        Lang::Aze => "az",
        Lang::Bel => "be",
        Lang::Ben => "bn",
        Lang::Bul => "bg",
        Lang::Cat => "ca",
        Lang::Ces => "cs",
        Lang::Cmn => "zh",
        Lang::Cym => "cy",
        Lang::Dan => "da",
        Lang::Deu => "de",
        Lang::Ell => "el",
        Lang::Eng => "en",
        Lang::Epo => "eo",
        Lang::Est => "et",
        Lang::Fin => "fi",
        Lang::Fra => "fr",
        Lang::Guj => "gu",
        Lang::Heb => "he",
        Lang::Hin => "hi",
        Lang::Hrv => "hr",
        Lang::Hun => "hu",
        Lang::Hye => "hy",
        Lang::Ind => "id",
        Lang::Ita => "it",
        Lang::Jav => "jv",
        Lang::Jpn => "ja",
        Lang::Kan => "kn",
        Lang::Kat => "ka",
        Lang::Khm => "km",
        Lang::Kor => "ko",
        Lang::Lat => "la",
        Lang::Lav => "lv",
        Lang::Lit => "lt",
        Lang::Mal => "ml",
        Lang::Mar => "mr",
        Lang::Mkd => "mk",
        Lang::Mya => "my",
        Lang::Nep => "ne",
        Lang::Nld => "nl",
        Lang::Nob => "nb",
        Lang::Ori => "or",
        Lang::Pan => "pa",
        Lang::Pes => "fa",
        Lang::Pol => "pl",
        Lang::Por => "pt",
        Lang::Ron => "ro",
        Lang::Rus => "ru",
        Lang::Sin => "si",
        Lang::Slk => "sk",
        Lang::Slv => "sl",
        Lang::Sna => "sn",
        Lang::Spa => "es",
        Lang::Srp => "sr",
        Lang::Swe => "sv",
        Lang::Tam => "ta",
        Lang::Tel => "te",
        Lang::Tgl => "tl",
        Lang::Tha => "th",
        Lang::Tuk => "tk",
        Lang::Tur => "tr",
        Lang::Ukr => "uk",
        Lang::Urd => "ur",
        Lang::Uzb => "uz",
        Lang::Vie => "vi",
        Lang::Yid => "yi",
        Lang::Zul => "zu",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn languages_of_sentences_are_detected() {
        let sentences = [
            ("en", "An old fisherman is mending his nets on the beach while the sun goes down behind him"),
            ("de", "Ein alter Fischer flickt am Strand seine Netze, während hinter ihm die Sonne untergeht"),
            (
                "fr",
                "Un vieux pêcheur répare ses filets sur la plage pendant que le soleil se couche derrière lui",
            ),
            ("es", "Un viejo pescador arregla sus redes en la playa mientras el sol se pone detrás de él"),
            (
                "it",
                "Un vecchio pescatore ripara le sue reti sulla spiaggia mentre il sole tramonta dietro di lui",
            ),
            ("pl", "Stary rybak naprawia swoje sieci na plaży, podczas gdy za nim zachodzi słońce"),
            ("ru", "Старый рыбак чинит сети на берегу, а за его спиной садится солнце"),
            ("el", "Ένας γέρος ψαράς επισκευάζει τα δίχτυα του στην παραλία"),
            ("ar", "صياد عجوز يصلح شباكه على الشاطئ بينما تغرب الشمس خلفه"),
            ("zh", "一位老渔夫在海滩上修补渔网"),
            ("ja", "年老いた漁師が浜辺で網を繕っている"),
            ("ko", "늙은 어부가 해변에서 그물을 손질하고 있다"),
        ];
        for (code, sentence) in sentences {
            let (found, confidence) = detect_language(sentence).unwrap();
            assert_eq!(found, code, "{sentence}");
            assert!((0.0..=1.0).contains(&confidence));
        }
        assert_eq!(detect_language("123 !"), None);
        assert_eq!(detect_language(""), None);
    }
}
