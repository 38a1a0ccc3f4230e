//! Tags of the first directory of TIFF, BigTIFF and EXIF, read where they lie.

/// A tag's value as it is stored.
struct Value<'a> {
    /// Bytes of each number.
    width: usize,
    bytes: &'a [u8],
    big_endian: bool,
}

/// The first number of a tag.
pub fn number(file: &[u8], tag: u16) -> Option<u64> {
    let value = find(file, tag)?;
    Some(join(value.bytes.get(..value.width)?, value.big_endian))
}

/// The bytes of a tag.
pub fn bytes(file: &[u8], tag: u16) -> Option<&[u8]> {
    find(file, tag).filter(|value| value.width == 1).map(|value| value.bytes)
}

fn find(file: &[u8], tag: u16) -> Option<Value<'_>> {
    let (big_endian, wide) = match file.first_chunk()? {
        b"II*\0" => (false, false),
        b"MM\0*" => (true, false),
        b"II+\0" => (false, true),
        b"MM\0+" => (true, true),
        _ => return None,
    };
    let slice = |at: u64, length: u64| {
        let end = usize::try_from(at.checked_add(length)?).ok()?;
        file.get(usize::try_from(at).ok()?..end)
    };
    let read = |at, length| slice(at, length).map(|bytes| join(bytes, big_endian));
    // Bytes of an offset or a count, of the number of entries, and of an entry.
    let (offset, entries, entry) = if wide { (8, 8, 20) } else { (4, 2, 12) };
    let directory = read(offset, offset)?;
    let first = directory + entries;
    let mut places = (0..read(directory, entries)?).map_while(|i| {
        let at = first + entry * i;
        Some((at, read(at, 2)?))
    });
    let (at, _) = places.find(|(_, found)| *found == u64::from(tag))?;
    let width: u8 = match read(at + 2, 2)? {
        // Numbers of one byte, text and bytes of no meaning; then numbers of two and of four bytes.
        1 | 2 | 6 | 7 => 1,
        3 => 2,
        4 => 4,
        _ => return None,
    };
    let length = read(at + 4, offset)?.checked_mul(width.into())?;
    // What has no room in the entry lies elsewhere.
    let value = at + 4 + offset;
    let place = if length <= offset { value } else { read(value, offset)? };
    Some(Value { width: width.into(), bytes: slice(place, length)?, big_endian })
}

fn join(bytes: &[u8], big_endian: bool) -> u64 {
    let join = |number, &byte| number << 8 | u64::from(byte);
    if big_endian { bytes.iter().fold(0, join) } else { bytes.iter().rev().fold(0, join) }
}
