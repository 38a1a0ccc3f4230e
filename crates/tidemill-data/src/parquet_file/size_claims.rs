//! Checks the sizes that a Parquet file claims before the `parquet` crate allocates them. A few
//! bytes can announce more row groups than a machine has memory for, and a failed allocation ends
//! the process. The check walks over Thrift's compact protocol, in which footers and page headers
//! are written, without allocating.

use parquet::errors::{ParquetError, Result};

/// Most nested structures; Parquet nests five.
const MAX_DEPTH: usize = 32;

/// Most bytes that one byte of a page can decompress to: a Zstandard block of four bytes may stand
/// for 128 KiB of one value.
const MAX_RATIO: u64 = 32 << 10;

/// Bytes of a page besides its blocks.
const PAGE_FRAME: u64 = 64;

/// Checks that no list of a footer is longer than the footer.
///
/// # Errors
/// If one is, or if the bytes are not a Thrift structure.
pub fn check_footer(footer: &[u8]) -> Result<()> {
    let mut walk = ThriftWalker { rest: footer };
    match walk.read_struct(0) {
        Some(_) => Ok(()),
        None => {
            Err(ParquetError::General("the footer is damaged: it breaks off, or a list is too long".into()))
        }
    }
}

/// Checks that no page of a column chunk claims to decompress to more bytes than it can. Bytes that
/// are not a page header are left to the reader.
///
/// # Errors
/// If a page does.
pub fn check_pages(chunk: &[u8]) -> Result<()> {
    let mut walk = ThriftWalker { rest: chunk };
    // Fields 2 and 3 of a page header are the page's uncompressed and compressed sizes.
    while let Some([_, _, unpacked, packed]) = walk.read_struct(0) {
        let (Ok(unpacked), Ok(packed)) = (u64::try_from(unpacked), u64::try_from(packed)) else { break };
        if unpacked / MAX_RATIO > packed.saturating_add(PAGE_FRAME) {
            return Err(ParquetError::General(format!("a page of {packed} bytes claims to hold {unpacked}")));
        }
        if walk.skip(packed).is_none() {
            break;
        }
    }
    Ok(())
}

/// The bytes that remain. All methods return `None` where the bytes end early or are malformed.
struct ThriftWalker<'a> {
    rest: &'a [u8],
}

impl ThriftWalker<'_> {
    /// The integers in the first fields of a structure, by field number; 0 if a field is missing.
    fn read_struct(&mut self, depth: usize) -> Option<[i64; 4]> {
        const STOP: u8 = 0;
        let mut integers = [0; 4];
        let mut id = 0_usize;
        loop {
            let header = self.read_byte()?;
            if header == STOP {
                return Some(integers);
            }
            id = match header >> 4 {
                0 => usize::try_from(decode_zigzag(self.read_varint()?)).ok()?,
                delta => id.checked_add(delta.into())?,
            };
            let value = self.read_value(header & 0xf, depth)?;
            if let (Some(value), Some(slot)) = (value, integers.get_mut(id)) {
                *slot = value;
            }
        }
    }

    /// A field's value, if it is an integer; others are skipped.
    fn read_value(&mut self, kind: u8, depth: usize) -> Option<Option<i64>> {
        const TRUE: u8 = 1;
        const FALSE: u8 = 2;
        match kind {
            // In a field, unlike in a list, the type is the whole value.
            TRUE | FALSE => {}
            3 => self.skip(1)?,
            4..=6 => return Some(Some(decode_zigzag(self.read_varint()?))),
            7 => self.skip(8)?,
            8 => {
                let length = self.read_varint()?;
                self.skip(length)?;
            }
            9 | 10 => self.skip_list(next_depth(depth)?)?,
            11 => self.skip_map(next_depth(depth)?)?,
            12 => _ = self.read_struct(next_depth(depth)?)?,
            _ => return None,
        }
        Some(None)
    }

    fn skip_list(&mut self, depth: usize) -> Option<()> {
        let header = self.read_byte()?;
        let length = match header >> 4 {
            15 => self.read_varint()?,
            short => short.into(),
        };
        self.skip_elements(length, &[header & 0xf], depth)
    }

    fn skip_map(&mut self, depth: usize) -> Option<()> {
        let length = self.read_varint()?;
        if length == 0 {
            return Some(());
        }
        let kinds = self.read_byte()?;
        self.skip_elements(length, &[kinds >> 4, kinds & 0xf], depth)
    }

    /// Skips elements of a list, each of at least one byte, or pairs of a map.
    fn skip_elements(&mut self, length: u64, kinds: &[u8], depth: usize) -> Option<()> {
        const BOOLEANS: std::ops::RangeInclusive<u8> = 1..=2;
        if length > self.rest.len() as u64 {
            return None;
        }
        for kind in (0..length).flat_map(|_| kinds) {
            match BOOLEANS.contains(kind) {
                true => self.skip(1)?,
                false => _ = self.read_value(*kind, depth)?,
            }
        }
        Some(())
    }

    fn read_byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first)
    }

    fn skip(&mut self, bytes: u64) -> Option<()> {
        self.rest = self.rest.get(usize::try_from(bytes).ok()?..)?;
        Some(())
    }

    /// A variable-length integer: seven bits a byte, the lowest first.
    fn read_varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.read_byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }
}

fn next_depth(depth: usize) -> Option<usize> {
    (depth < MAX_DEPTH).then_some(depth + 1)
}

fn decode_zigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -(value & 1).cast_signed()
}
