//! The single-byte encodings in which UTF-8 is most often misread, and the characters that the
//! bytes of UTF-8 become in them.

use std::collections::HashMap;
use std::sync::LazyLock;

/// Characters of the bytes 80 to FF in Windows-1252. Unassigned bytes are as in Latin-1.
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
/// Characters from byte A0 on. The bytes below are as in Latin-1.
const ISO_8859_2: &str = "\u{a0}Ą\u{2d8}Ł¤ĽŚ§\u{a8}ŠŞŤŹ\u{ad}ŽŻ°ą\u{2db}ł\u{b4}ľś\u{2c7}\u{b8}šşťź\u{2dd}žż\
    ŔÁÂĂÄĹĆÇČÉĘËĚÍÎĎĐŃŇÓÔŐÖ×ŘŮÚŰÜÝŢßŕáâăäĺćçčéęëěíîďđńňóôőö÷řůúűüýţ\u{2d9}";
const MAC_ROMAN: &str = "ÄÅÇÉÑÖÜáàâäãåçéèêëíìîïñóòôöõúùûü†°¢£§•¶ß®©™\u{b4}\u{a8}≠ÆØ∞±≤≥¥µ∂∑∏π∫ªºΩæø\
    ¿¡¬√ƒ≈∆«»…\u{a0}ÀÃÕŒœ–—“”‘’÷◊ÿŸ⁄€‹›ﬁﬂ‡·‚„‰ÂÊÁËÈÍÎÏÌÓÔ\u{f8ff}ÒÚÛÙı\u{2c6}\u{2dc}\u{af}\u{2d8}\u{2d9}\u{2da}\
    \u{b8}\u{2dd}\u{2db}\u{2c7}";
const CP437: &str = "ÇüéâäàåçêëèïîìÄÅÉæÆôöòûùÿÖÜ¢£¥₧ƒáíóúñÑªº¿⌐¬½¼¡«»░▒▓│┤╡╢╖╕╣║╗╝╜╛┐\
    └┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√\u{207f}²■\u{a0}";

/// A single-byte encoding.
pub struct Charmap {
    /// True if U+FFFD is encoded as byte 1A, which marks a lost byte.
    pub sloppy: bool,
    /// True if a space may stand for byte A0.
    pub spaces_hide_a0: bool,
    bytes: HashMap<char, u8>,
}

/// The encodings, in the order in which they are tried.
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
        // Byte A0 is a dagger in MacRoman. What looks like UTF-8 with a space is a dash.
        Charmap::new(MAC_ROMAN, false, false),
        Charmap::new(CP437, false, true),
    ]
});

impl Charmap {
    fn new(high: &str, sloppy: bool, spaces_hide_a0: bool) -> Self {
        Self { sloppy, spaces_hide_a0, bytes: high.chars().zip(0x80..=0xff).collect() }
    }

    /// Encodes a text; `None` if the encoding lacks one of its characters.
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

/// The roles that a character can have if it is a misread byte of UTF-8.
#[derive(Debug, Clone, Copy, Default)]
pub struct Utf8Roles {
    /// The character can start a sequence of two, three or four bytes.
    pub starts_sequence: [bool; 3],
    /// The character can continue a sequence. A space can, in place of byte A0.
    pub is_continuation: bool,
    /// The character can continue a sequence, and is hardly ever itself when it is next to
    /// mojibake.
    pub is_strict_continuation: bool,
}

/// The roles of a character.
pub fn utf8_roles(c: char) -> Utf8Roles {
    if c.is_ascii() {
        return Utf8Roles { is_continuation: c == ' ', ..Utf8Roles::default() };
    }
    UTF8_ROLES.get(&c).copied().unwrap_or_default()
}

static UTF8_ROLES: LazyLock<HashMap<char, Utf8Roles>> =
    LazyLock::new(|| {
        let mut roles: HashMap<char, Utf8Roles> = HashMap::new();
        let mut mark = |ranges: &str, set: fn(&mut Utf8Roles)| {
            expand_ranges(ranges).for_each(|c| set(roles.entry(c).or_default()));
        };
        mark("Â-ßĀĂĆČĎĐĒĖĘĚĞĢĪİĶĹĻŁŃŅŇŌŐŘŚŞŠŢŪŮŰŲŹŻŽΒ-ΡΣ-ίВ-Я", |c| c.starts_sequence[0] = true);
        mark("à-ïāăąćčďēėęěģīįķĺļŕźΰ-οа-п", |c| c.starts_sequence[1] = true);
        mark("ðóđğšπσру", |c| c.starts_sequence[2] = true);
        mark(STRICT, |c| (c.is_continuation, c.is_strict_continuation) = (true, true));
        mark("–-―‘-‚“-„•…", |c| c.is_continuation = true);
        roles
    });

const STRICT: &str = "\u{80}-¿ÆØæøĄąĽľŁłŒœŖŗŚśŞ-šŤťŸ-žƒ\u{2c6}\u{2c7}\u{2d8}\u{2db}-\u{2dd}\u{384}-ΆΈ-ΊΌΎΏ\
    Ё-ЌЎЏё-ќўџҐґ†‡‰‹›€№™";

/// Lists the characters of a string in which a hyphen makes a range.
fn expand_ranges(ranges: &str) -> impl Iterator<Item = char> {
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
    fn each_encoding_has_a_character_for_every_byte() {
        for charmap in CHARMAPS.iter() {
            assert_eq!(charmap.bytes.len(), 128);
        }
        assert_eq!(CHARMAPS[1].encode("schÃ¶n \u{fffd}"), Some(b"sch\xc3\xb6n \x1a".to_vec()));
        assert_eq!(CHARMAPS[0].encode("€"), None);
    }
}
