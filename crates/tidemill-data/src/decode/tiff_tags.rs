//! Reads single tags from the first directory of TIFF, BigTIFF or EXIF without parsing the rest.

/// The stored value of a tag.
struct Value<'a> {
    /// Bytes per number.
    width: usize,
    bytes: &'a [u8],
    big_endian: bool,
}

/// The first number of a tag; `None` if the tag is missing or malformed.
pub fn read_number(file: &[u8], tag: u16) -> Option<u64> {
    let value = find_tag(file, tag)?;
    Some(join_bytes(value.bytes.get(..value.width)?, value.big_endian))
}

/// The bytes of a tag; `None` if the tag is missing or not made of bytes.
pub fn read_bytes(file: &[u8], tag: u16) -> Option<&[u8]> {
    find_tag(file, tag).filter(|value| value.width == 1).map(|value| value.bytes)
}

fn find_tag(file: &[u8], tag: u16) -> Option<Value<'_>> {
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
    let read = |at, length| slice(at, length).map(|bytes| join_bytes(bytes, big_endian));
    // Bytes of an offset or a count, of the number of entries, and of an entry.
    let (offset, entries, entry) = if wide { (8, 8, 20) } else { (4, 2, 12) };
    let directory = read(offset, offset)?;
    let first = directory + entries;
    let mut entries_found = (0..read(directory, entries)?).map_while(|i| {
        let at = first + entry * i;
        Some((at, read(at, 2)?))
    });
    let (at, _) = entries_found.find(|(_, found)| *found == u64::from(tag))?;
    let width: u8 = match read(at + 2, 2)? {
        // Types of one byte (numbers, text, undefined); then numbers of two and of four bytes.
        1 | 2 | 6 | 7 => 1,
        3 => 2,
        4 => 4,
        _ => return None,
    };
    let length = read(at + 4, offset)?.checked_mul(width.into())?;
    // A value that does not fit in the entry is stored at the offset that the entry holds.
    let value = at + 4 + offset;
    let offset_of_value = if length <= offset { value } else { read(value, offset)? };
    Some(Value { width: width.into(), bytes: slice(offset_of_value, length)?, big_endian })
}

fn join_bytes(bytes: &[u8], big_endian: bool) -> u64 {
    let join = |number, &byte| number << 8 | u64::from(byte);
    if big_endian { bytes.iter().fold(0, join) } else { bytes.iter().rev().fold(0, join) }
}
