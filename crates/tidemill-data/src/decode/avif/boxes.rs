//! Boxes and numbers of the ISO base media file format (ISO/IEC 14496-12). Nothing is allocated, and
//! nothing beyond the given bytes is read.

/// Reads from the front of bytes. Methods return `None` if there are too few bytes.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// The next `count` bytes.
    pub fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    /// A big-endian number of up to eight bytes; one of no bytes is zero.
    pub fn number(&mut self, bytes: usize) -> Option<u64> {
        Some(self.bytes(bytes)?.iter().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }

    pub fn u8(&mut self) -> Option<u8> {
        Some(*self.bytes(1)?.first()?)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.number(2)?.try_into().ok()
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.number(4)?.try_into().ok()
    }

    /// A number of two bytes, or of four if `wide`.
    pub fn narrow_or_wide(&mut self, wide: bool) -> Option<u32> {
        self.number(if wide { 4 } else { 2 })?.try_into().ok()
    }

    /// Text up to a zero byte, or up to the end.
    pub fn text(&mut self) -> &'a [u8] {
        let length = self.0.iter().position(|&byte| byte == 0);
        let (text, rest) = self.0.split_at(length.unwrap_or(self.0.len()));
        self.0 = rest.get(1..).unwrap_or_default();
        text
    }

    /// The version and the flags that a full box begins with.
    pub fn version_and_flags(&mut self) -> Option<(u8, u32)> {
        let both = self.u32()?;
        Some(((both >> 24) as u8, both & 0xff_ffff))
    }
}

/// Type and content of a box.
pub type Box<'a> = ([u8; 4], &'a [u8]);

/// The boxes that follow one another in `bytes`, up to the first that is cut short.
pub fn boxes(bytes: &[u8]) -> impl Iterator<Item = Box<'_>> {
    let mut reader = Reader(bytes);
    std::iter::from_fn(move || read_box(&mut reader))
}

/// The content of the first box of a type.
pub fn find<'a>(bytes: &'a [u8], kind: &[u8; 4]) -> Option<&'a [u8]> {
    boxes(bytes).find(|(found, _)| found == kind).map(|(_, content)| content)
}

fn read_box<'a>(reader: &mut Reader<'a>) -> Option<Box<'a>> {
    let size = u64::from(reader.u32()?);
    let kind = reader.bytes(4)?.try_into().ok()?;
    let content = match size {
        // The last box may extend to the end.
        0 => reader.0.len(),
        1 => usize::try_from(reader.number(8)?.checked_sub(16)?).ok()?,
        _ => usize::try_from(size.checked_sub(8)?).ok()?,
    };
    Some((kind, reader.bytes(content)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_have_sizes_of_32_bits_of_64_bits_or_up_to_the_end() {
        let bytes = b"\0\0\0\x0aaaaa12\0\0\0\x01bbbb\0\0\0\0\0\0\0\x113\0\0\0\0cccc45";
        let found: Vec<_> = boxes(bytes).collect();
        assert_eq!(found, [(*b"aaaa", &b"12"[..]), (*b"bbbb", b"3"), (*b"cccc", b"45")]);
        assert_eq!(find(bytes, b"bbbb"), Some(&b"3"[..]));
        assert_eq!(find(bytes, b"dddd"), None);
    }

    #[test]
    fn a_box_that_is_cut_short_ends_the_boxes() {
        for bytes in
            [&b"\0\0\0\x0baaaa12"[..], b"\0\0\0\x07aaaa", b"\0\0\0\x01aaaa\0\0\0\0\0\0\0\x0f", b"\0\0"]
        {
            assert_eq!(boxes(bytes).count(), 0, "{bytes:?}");
        }
    }

    #[test]
    fn text_ends_at_a_zero_or_at_the_end() {
        let mut reader = Reader(b"ab\0\0cd");
        assert_eq!(
            [reader.text(), reader.text(), reader.text(), reader.text()],
            [&b"ab"[..], b"", b"cd", b""]
        );
    }
}
