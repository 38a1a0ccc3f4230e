//! The single-byte encodings in which UTF-8 is most often misread, and the characters that this makes of UTF-8's bytes.

use std::collections::HashMap;
use std::sync::LazyLock;

/// What bytes 80 to FF are in Windows-1252, with unassigned bytes as in Latin-1.
pub const WINDOWS_1252: &str = "€\u{81}‚ƒ„…†‡\u{2c6}‰Š‹Œ\u{8d}Ž\u{8f}\u{90}‘’“”•–—\u{2dc}™š›œ\u{9d}žŸ\
    \u{a0}¡¢£¤¥¦§\u{a8}©ª«¬\u{ad}®\u{af}°±²³\u{b4}µ¶·\u{b8}¹º»¼½¾¿\
    ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÐÑÒÓÔÕÖ×ØÙÚÛÜÝÞßàáâãäåæçèéêëìíîïðñòóôõö÷øùúûüýþÿ";
const WINDOWS_1251: &str = "ЂЃ‚ѓ„…†‡€‰Љ‹ЊЌЋЏђ‘’“”•–—\u{98}™љ›њќћџ\
    \u{a0}ЎўЈ¤Ґ¦§Ё©Є«¬\u{ad}®Ї°±Ііґµ¶·ё№є»јЅѕї\
    АБВГДЕЖЗИЙКЛМНОПРСТУФХЦЧШЩЪЫЬЭЮЯабвгдежзийклмнопрстуфхцчшщъыьэюя";
const WINDOWS_1250: &str = "€\u{81}‚\u{83}„…†‡\u{88}‰Š‹ŚŤŽŹ\u{90}‘’“”•–—\u{98}™š›śťžź\
    \u{a0}\u{2c7}\u{2d8}Ł¤Ą¦§\u{a8}©Ş«¬\u{ad}®Ż°±\u{2db}ł\u{b4}µ¶·\u{b8}ąş»Ľ\u{2dd}ľż\
    ŔÁÂĂÄĹĆÇČÉĘËĚÍÎĎĐŃŇÓÔŐÖ×ŘŮÚŰÜÝŢßŕáâăäĺćçčéęëěíîďđńňóôőö÷řůúűüýţ\u{2d9}";
const WINDOWS_1253: &str = "€\u{81}‚ƒ„…†‡\u{88}‰\u{8a}‹\u{8c}\u{8d}\u{8e}\u{8f}\u{90}‘’“”•–—\u{98}™\u{9a}›\u{9c}\u{9d}\u{9e}\u{9f}\
    \u{a0}\u{385}Ά£¤¥¦§\u{a8}©ª«¬\u{ad}®―°±²³\u{384}µ¶·ΈΉΊ»Ό½ΎΏ\
    ΐΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟΠΡÒΣΤΥΦΧΨΩΪΫάέήίΰαβγδεζηθικλμνξοπρςστυφχψωϊϋόύώÿ";
const WINDOWS_1254: &str = "€\u{81}‚ƒ„…†‡\u{2c6}‰Š‹Œ\u{8d}\u{8e}\u{8f}\u{90}‘’“”•–—\u{2dc}™š›œ\u{9d}\u{9e}Ÿ\
    \u{a0}¡¢£¤¥¦§\u{a8}©ª«¬\u{ad}®\u{af}°±²³\u{b4}µ¶·\u{b8}¹º»¼½¾¿\
    ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏĞÑÒÓÔÕÖ×ØÙÚÛÜİŞßàáâãäåæçèéêëìíîïğñòóôõö÷øùúûüışÿ";
const WINDOWS_1257: &str = "€\u{81}‚\u{83}„…†‡\u{88}‰\u{8a}‹\u{8c}\u{a8}\u{2c7}\u{b8}\u{90}‘’“”•–—\u{98}™\u{9a}›\u{9c}\u{af}\u{2db}\u{9f}\
    \u{a0}¡¢£¤¥¦§Ø©Ŗ«¬\u{ad}®Æ°±²³\u{b4}µ¶·ø¹ŗ»¼½¾æ\
    ĄĮĀĆÄÅĘĒČÉŹĖĢĶĪĻŠŃŅÓŌÕÖ×ŲŁŚŪÜŻŽßąįāćäåęēčéźėģķīļšńņóōõö÷ųłśūüżž\u{2d9}";
/// From byte A0 on; below it is as Latin-1.
const ISO_8859_2: &str = "\u{a0}Ą\u{2d8}Ł¤ĽŚ§\u{a8}ŠŞŤŹ\u{ad}ŽŻ°ą\u{2db}ł\u{b4}ľś\u{2c7}\u{b8}šşťź\u{2dd}žż\
    ŔÁÂĂÄĹĆÇČÉĘËĚÍÎĎĐŃŇÓÔŐÖ×ŘŮÚŰÜÝŢßŕáâăäĺćçčéęëěíîďđńňóôőö÷řůúűüýţ\u{2d9}";
const MAC_ROMAN: &str = "ÄÅÇÉÑÖÜáàâäãåçéèêëíìîïñóòôöõúùûü†°¢£§•¶ß®©™\u{b4}\u{a8}≠ÆØ∞±≤≥¥µ∂∑∏π∫ªºΩæø\
    ¿¡¬√ƒ≈∆«»…\u{a0}ÀÃÕŒœ–—“”‘’÷◊ÿŸ⁄€‹›ﬁﬂ‡·‚„‰ÂÊÁËÈÍÎÏÌÓÔ\u{f8ff}ÒÚÛÙı\u{2c6}\u{2dc}\u{af}\u{2d8}\u{2d9}\u{2da}\
    \u{b8}\u{2dd}\u{2db}\u{2c7}";
const CP437: &str = "ÇüéâäàåçêëèïîìÄÅÉæÆôöòûùÿÖÜ¢£¥₧ƒáíóúñÑªº¿⌐¬½¼¡«»░▒▓│┤╡╢╖╕╣║╗╝╜╛┐\
    └┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√\u{207f}²■\u{a0}";

/// A single-byte encoding.
pub struct Charmap {
    /// Whether U+FFFD is taken for a lost byte, written 1A.
    pub sloppy: bool,
    /// Whether a space may stand for byte A0.
    pub spaces_hide_a0: bool,
    bytes: HashMap<char, u8>,
}

/// In the order in which they are tried.
pub static CHARMAPS: LazyLock<[Charmap; 10]> = LazyLock::new(|| {
    let latin_1: String = ('\u{80}'..='\u{ff}').collect();
    let iso_8859_2: String = ('\u{80}'..='\u{9f}').chain(ISO_8859_2.chars()).collect();
    let sloppy = |high| Charmap::new(high, true, true);
    [
        Charmap::new(&latin_1, false, true),
        sloppy(WINDOWS_1252),
        sloppy(WINDOWS_1251),
        sloppy(WINDOWS_1250),
        sloppy(WINDOWS_1253),
        sloppy(WINDOWS_1254),
        sloppy(WINDOWS_1257),
        Charmap::new(&iso_8859_2, false, true),
        // Here byte A0 is a dagger, and what looks like UTF-8 with a space is a dash.
        Charmap::new(MAC_ROMAN, false, false),
        Charmap::new(CP437, false, true),
    ]
});

impl Charmap {
    fn new(high: &str, sloppy: bool, spaces_hide_a0: bool) -> Self {
        Self { sloppy, spaces_hide_a0, bytes: high.chars().zip(0x80..=0xff).collect() }
    }

    /// The text's bytes in this encoding, if it has all its characters.
    pub fn encode(&self, text: &str) -> Option<Vec<u8>> {
        let byte = |c| match c {
            '\x1a' if self.sloppy => None,
            '\u{fffd}' if self.sloppy => Some(0x1a),
            '\0'..='\x7f' => u8::try_from(c).ok(),
            c => self.bytes.get(&c).copied(),
        };
        text.chars().map(byte).collect()
    }
}

/// What a character may be, if it is a byte of UTF-8 in one of these encodings.
#[derive(Debug, Clone, Copy, Default)]
pub struct Clues {
    /// Whether it begins a sequence of two, three, four bytes.
    pub first_of: [bool; 3],
    /// Whether it continues a sequence; a space may, in place of byte A0.
    pub continuation: bool,
    /// Whether it continues a sequence and hardly ever stands for itself next to mojibake.
    pub strict_continuation: bool,
}

/// The clues that a character gives.
pub fn clues(c: char) -> Clues {
    if c.is_ascii() {
        return Clues { continuation: c == ' ', ..Clues::default() };
    }
    CLUES.get(&c).copied().unwrap_or_default()
}

static CLUES: LazyLock<HashMap<char, Clues>> =
    LazyLock::new(|| {
        let mut clues: HashMap<char, Clues> = HashMap::new();
        let mut mark = |ranges: &str, set: fn(&mut Clues)| {
            expand(ranges).for_each(|c| set(clues.entry(c).or_default()));
        };
        mark("Â-ßĀĂĆČĎĐĒĖĘĚĞĢĪİĶĹĻŁŃŅŇŌŐŘŚŞŠŢŪŮŰŲŹŻŽΒ-ΡΣ-ίВ-Я", |c| c.first_of[0] = true);
        mark("à-ïāăąćčďēėęěģīįķĺļŕźΰ-οа-п", |c| c.first_of[1] = true);
        mark("ðóđğšπσру", |c| c.first_of[2] = true);
        mark(STRICT, |c| (c.continuation, c.strict_continuation) = (true, true));
        mark("–-―‘-‚“-„•…", |c| c.continuation = true);
        clues
    });

const STRICT: &str = "\u{80}-¿ÆØæøĄąĽľŁłŒœŖŗŚśŞ-šŤťŸ-žƒ\u{2c6}\u{2c7}\u{2d8}\u{2db}-\u{2dd}\u{384}-ΆΈ-ΊΌΎΏ\
    Ё-ЌЎЏё-ќўџҐґ†‡‰‹›€№™";

/// The characters of a list in which a hyphen makes a range.
fn expand(ranges: &str) -> impl Iterator<Item = char> {
    let chars: Vec<char> = ranges.chars().collect();
    let mut spans = Vec::new();
    let mut i = 0;
    while i < chars.len() {
        let is_range = chars.get(i + 1) == Some(&'-') && i + 2 < chars.len();
        let end = if is_range { i + 2 } else { i };
        spans.push(chars[i]..=chars[end]);
        i = end + 1;
    }
    spans.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_charmap_has_a_character_for_each_byte() {
        for charmap in CHARMAPS.iter() {
            assert_eq!(charmap.bytes.len(), 128);
        }
        assert_eq!(CHARMAPS[1].encode("schÃ¶n \u{fffd}"), Some(b"sch\xc3\xb6n \x1a".to_vec()));
        assert_eq!(CHARMAPS[0].encode("€"), None);
    }
}
