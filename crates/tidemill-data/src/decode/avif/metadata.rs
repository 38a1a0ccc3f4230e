//! The orientation, as Pillow finds it.

use crate::decode::avif::boxes::Reader;
use crate::decode::avif::layer::Image;

/// The EXIF orientation. The rotation and mirror of the image replace an orientation in EXIF, even where
/// there are none; XMP counts if neither says anything.
pub fn orientation(image: &Image) -> u8 {
    let in_exif = image.exif.as_deref().is_some_and(|exif| has_orientation(exif).is_some());
    if image.orientation != 1 || in_exif {
        return image.orientation;
    }
    let in_xmp = image.xmp.as_deref().and_then(orientation_of_xmp);
    in_xmp.filter(|number| (1..=8).contains(number)).unwrap_or(1)
}

/// `Some` if EXIF has an orientation.
fn has_orientation(exif: &[u8]) -> Option<()> {
    const ORIENTATION: u16 = 0x0112;
    const ENTRY: usize = 12;
    let tiff = exif.strip_prefix(b"Exif\0\0").unwrap_or(exif);
    let is_big_endian = match tiff.first_chunk()? {
        b"II*\0" => false,
        b"MM\0*" => true,
        _ => return None,
    };
    let number = |at: usize, bytes: usize| {
        let mut bytes = tiff.get(at..at.checked_add(bytes)?)?.to_vec();
        if !is_big_endian {
            bytes.reverse();
        }
        Reader(&bytes).number(bytes.len()).map(|number| number as usize)
    };
    let directory = number(4, 4)?;
    let entries = number(directory, 2)?;
    let mut tags = (0..entries).map_while(|entry| number(directory + 2 + ENTRY * entry, 2));
    tags.any(|tag| tag == usize::from(ORIENTATION)).then_some(())
}

/// The first `tiff:Orientation`, as an attribute or as an element.
fn orientation_of_xmp(xmp: &[u8]) -> Option<u8> {
    const NAME: &[u8] = b"tiff:Orientation";
    xmp.windows(NAME.len() + 3).filter_map(|window| window.strip_prefix(NAME)).find_map(|rest| match rest {
        [b'>', digit, _] | [b'=', b'"', digit] if digit.is_ascii_digit() => Some(digit - b'0'),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orientations_are_found() {
        let exif = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0";
        assert!(has_orientation(exif).is_some() && has_orientation(&exif[6..]).is_some());
        assert!(has_orientation(b"MM\0*\0\0\0\x08\0\x01\x01\x13").is_none());
        assert_eq!(orientation_of_xmp(b"<x tiff:Orientation=\"8\">"), Some(8));
        assert_eq!(orientation_of_xmp(b"<tiff:Orientation>5</tiff:Orientation>"), Some(5));
        assert_eq!(orientation_of_xmp(b"tiff:Orientation=\"x\""), None);
    }
}
