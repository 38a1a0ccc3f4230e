//! What a Parquet file claims of its own size, checked before the `parquet` crate makes room for it: a few bytes can
//! announce more row groups than a machine has memory for, and an allocation that fails ends the process. Walks
//! Thrift's compact protocol, in which footers and page headers are written, without taking anything in.

use parquet::errors::{ParquetError, Result};

/// Structures within structures; the deepest of Parquet's are five.
const MAX_DEPTH: usize = 32;

/// Most bytes that one byte of a page can become: a Zstandard block of four bytes may stand for 128 KiB of one value.
const MAX_RATIO: u64 = 32 << 10;

/// Bytes of a page beside its blocks.
const PAGE_FRAME: u64 = 64;

/// Checks that no list of a footer is longer than the footer.
///
/// # Errors
/// If one is, or if the bytes are no Thrift structure.
pub fn check_footer(footer: &[u8]) -> Result<()> {
    let mut walk = Walk { rest: footer };
    match walk.structure(0) {
        Some(_) => Ok(()),
        None => {
            Err(ParquetError::General("the footer is damaged: it breaks off, or a list is too long".into()))
        }
    }
}

/// Checks that no page of a column chunk claims to become more than its bytes can. What cannot be read as a page
/// header is left to the reader.
///
/// # Errors
/// If one does.
pub fn check_pages(chunk: &[u8]) -> Result<()> {
    let mut walk = Walk { rest: chunk };
    // Of a page header, the fields 2 and 3 are its page's sizes, uncompressed and compressed.
    while let Some([_, _, unpacked, packed]) = walk.structure(0) {
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

/// What is left to walk over. All of its methods give nothing where the bytes break off or make no sense.
struct Walk<'a> {
    rest: &'a [u8],
}

impl Walk<'_> {
    /// The integers in a structure's first fields, by field number; 0 where there is none.
    fn structure(&mut self, depth: usize) -> Option<[i64; 4]> {
        const STOP: u8 = 0;
        let mut integers = [0; 4];
        let mut id = 0_usize;
        loop {
            let header = self.byte()?;
            if header == STOP {
                return Some(integers);
            }
            id = match header >> 4 {
                0 => usize::try_from(zigzag(self.varint()?)).ok()?,
                delta => id.checked_add(delta.into())?,
            };
            let value = self.value(header & 0xf, depth)?;
            if let (Some(value), Some(slot)) = (value, integers.get_mut(id)) {
                *slot = value;
            }
        }
    }

    /// A field's value: the number, if it is an integer.
    fn value(&mut self, kind: u8, depth: usize) -> Option<Option<i64>> {
        const TRUE: u8 = 1;
        const FALSE: u8 = 2;
        match kind {
            // In a field, as opposed to a list, the type says it all.
            TRUE | FALSE => {}
            3 => self.skip(1)?,
            4..=6 => return Some(Some(zigzag(self.varint()?))),
            7 => self.skip(8)?,
            8 => {
                let length = self.varint()?;
                self.skip(length)?;
            }
            9 | 10 => self.list(deeper(depth)?)?,
            11 => self.map(deeper(depth)?)?,
            12 => _ = self.structure(deeper(depth)?)?,
            _ => return None,
        }
        Some(None)
    }

    fn list(&mut self, depth: usize) -> Option<()> {
        let header = self.byte()?;
        let length = match header >> 4 {
            15 => self.varint()?,
            short => short.into(),
        };
        self.elements(length, &[header & 0xf], depth)
    }

    fn map(&mut self, depth: usize) -> Option<()> {
        let length = self.varint()?;
        if length == 0 {
            return Some(());
        }
        let kinds = self.byte()?;
        self.elements(length, &[kinds >> 4, kinds & 0xf], depth)
    }

    /// Elements of a list, each of at least one byte, or pairs of a map.
    fn elements(&mut self, length: u64, kinds: &[u8], depth: usize) -> Option<()> {
        const BOOLEANS: std::ops::RangeInclusive<u8> = 1..=2;
        if length > self.rest.len() as u64 {
            return None;
        }
        for kind in (0..length).flat_map(|_| kinds) {
            match BOOLEANS.contains(kind) {
                true => self.skip(1)?,
                false => _ = self.value(*kind, depth)?,
            }
        }
        Some(())
    }

    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first)
    }

    fn skip(&mut self, bytes: u64) -> Option<()> {
        self.rest = self.rest.get(usize::try_from(bytes).ok()?..)?;
        Some(())
    }

    /// Seven bits a byte, the lowest first.
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }
}

fn deeper(depth: usize) -> Option<usize> {
    (depth < MAX_DEPTH).then_some(depth + 1)
}

fn zigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -(value & 1).cast_signed()
}
