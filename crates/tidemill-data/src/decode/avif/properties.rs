//! Properties of an image item or of a track's images.

use crate::decode::avif::boxes::{Reader, boxes};

/// How samples encode color: code points of ITU-T H.273.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cicp {
    pub primaries: u16,
    pub matrix: u16,
    pub full_range: bool,
}

/// The properties that the decoder uses.
#[derive(Debug, Clone, Default)]
pub struct Properties<'a> {
    /// Width and height in pixels.
    pub size: Option<(u32, u32)>,
    pub cicp: Option<Cicp>,
    pub icc: Option<&'a [u8]>,
    /// Quarter turns anticlockwise.
    pub rotation: Option<u8>,
    /// 0 exchanges top and bottom, 1 exchanges left and right.
    pub mirror: Option<u8>,
    /// Of an auxiliary image that says so, whether it is an alpha plane.
    pub is_alpha: Option<bool>,
    pub operating_point: u8,
    /// True if not the last of the layers is wanted.
    pub selects_layer: bool,
    /// True if an unknown property must be understood to decode the image.
    pub has_unknown_essential: bool,
}

impl<'a> Properties<'a> {
    /// The properties in the boxes of a track's sample entry.
    pub fn of_boxes(bytes: &'a [u8]) -> Self {
        let mut properties = Self::default();
        boxes(bytes).for_each(|(kind, content)| {
            properties.add(kind, content, false);
        });
        properties
    }

    /// Adds a property; `None` if it is cut short.
    pub fn add(&mut self, kind: [u8; 4], content: &'a [u8], essential: bool) -> Option<()> {
        let mut reader = Reader(content);
        match &kind {
            b"ispe" => {
                reader.version_and_flags()?;
                self.size = Some((reader.u32()?, reader.u32()?));
            }
            b"colr" => self.add_color(reader)?,
            b"irot" => self.rotation = Some(reader.u8()? & 3),
            b"imir" => self.mirror = Some(reader.u8()? & 1),
            b"auxC" | b"auxi" => {
                reader.version_and_flags()?;
                self.is_alpha = Some(is_alpha_urn(reader.text()));
            }
            b"a1op" => self.operating_point = reader.u8()?,
            b"lsel" => self.selects_layer = reader.u16()? != u16::MAX,
            // These do not change the pixels.
            b"av1C" | b"pixi" | b"pasp" | b"clap" | b"a1lx" | b"clli" => {}
            _ => self.has_unknown_essential |= essential,
        }
        Some(())
    }

    fn add_color(&mut self, mut reader: Reader<'a>) -> Option<()> {
        match reader.bytes(4)? {
            b"nclx" => {
                let primaries = reader.u16()?;
                let _transfer = reader.u16()?;
                let matrix = reader.u16()?;
                self.cicp = Some(Cicp { primaries, matrix, full_range: reader.u8()? & 0x80 != 0 });
            }
            b"prof" | b"rICC" => self.icc = Some(reader.0).filter(|icc| !icc.is_empty()),
            _ => {}
        }
        Some(())
    }

    /// The EXIF orientation that undoes as much as rotation, then mirror.
    pub fn orientation(&self) -> u8 {
        let rotation = self.rotation.unwrap_or(0);
        match (rotation, self.mirror) {
            (0, None) => 1,
            (1, None) => 8,
            (2, None) => 3,
            (_, None) => 6,
            (0, Some(0)) | (2, Some(1)) => 4,
            (0, Some(_)) | (2, Some(_)) => 2,
            (1, Some(0)) | (3, Some(1)) => 5,
            (_, Some(_)) => 7,
        }
    }
}

fn is_alpha_urn(urn: &[u8]) -> bool {
    [&b"urn:mpeg:mpegB:cicp:systems:auxiliary:alpha"[..], b"urn:mpeg:hevc:2015:auxid:1"].contains(&urn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_are_read() {
        let mut properties = Properties::default();
        properties.add(*b"ispe", b"\0\0\0\0\0\0\x01\x02\0\0\0\x03", false).unwrap();
        properties.add(*b"colr", b"nclx\0\x09\0\x10\0\x09\x80", false).unwrap();
        properties.add(*b"colr", b"profabc", false).unwrap();
        properties.add(*b"auxC", b"\0\0\0\0urn:mpeg:mpegB:cicp:systems:auxiliary:alpha\0", true).unwrap();
        assert_eq!(properties.size, Some((258, 3)));
        assert_eq!(properties.cicp, Some(Cicp { primaries: 9, matrix: 9, full_range: true }));
        assert_eq!(properties.icc, Some(&b"abc"[..]));
        assert!(properties.is_alpha == Some(true) && !properties.has_unknown_essential);
        assert_eq!(properties.add(*b"ispe", b"\0\0\0\0\0\0", false), None);
        properties.add(*b"zzzz", b"", true).unwrap();
        assert!(properties.has_unknown_essential);
    }

    #[test]
    fn transforms_become_the_orientation_of_exif() {
        let orientation =
            |rotation, mirror| Properties { rotation, mirror, ..Properties::default() }.orientation();
        let turned = [None, Some(0), Some(1), Some(2), Some(3)].map(|rotation| orientation(rotation, None));
        assert_eq!(turned, [1, 1, 8, 3, 6]);
        assert_eq!([0, 1, 2, 3].map(|rotation| orientation(Some(rotation), Some(0))), [4, 5, 2, 7]);
        assert_eq!([0, 1, 2, 3].map(|rotation| orientation(Some(rotation), Some(1))), [2, 7, 4, 5]);
    }
}
