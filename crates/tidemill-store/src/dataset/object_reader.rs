//! An object of a store as a file that the `parquet` crate reads by range.

use std::io::{self, Read};

use bytes::{Buf, Bytes};
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};
use tidemill_io::Location;

/// Bytes asked for at a time.
const PIECE: u64 = 1 << 20;

/// An object that is read in parts.
pub(super) struct Object {
    pub location: Location,
    pub key: String,
    pub bytes: u64,
}

impl Object {
    fn range(&self, start: u64, end: u64) -> tidemill_io::Result<Bytes> {
        self.location.get_range(&self.key, start..end.min(self.bytes))
    }
}

impl Length for Object {
    fn len(&self) -> u64 {
        self.bytes
    }
}

impl ChunkReader for Object {
    type T = Pieces;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Pieces> {
        let object = Self { location: self.location.clone(), key: self.key.clone(), bytes: self.bytes };
        Ok(Pieces { object, next: start, piece: Bytes::new() })
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        self.range(start, start + length as u64).map_err(|e| ParquetError::External(Box::new(e)))
    }
}

/// An object from some byte on.
pub(super) struct Pieces {
    object: Object,
    next: u64,
    piece: Bytes,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.piece.is_empty() && self.next < self.object.bytes {
            self.piece = self.object.range(self.next, self.next + PIECE).map_err(io::Error::other)?;
            self.next += self.piece.len() as u64;
        }
        let n = buffer.len().min(self.piece.len());
        self.piece.copy_to_slice(&mut buffer[..n]);
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_from_anywhere_to_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let location = Location::open(folder.path().to_str().unwrap()).unwrap();
        let content: Vec<u8> = (0..PIECE as u32 + 70_000).map(|i| (i % 251) as u8).collect();
        location.put("x", Bytes::from(content.clone())).unwrap();
        let object = Object { location, key: "x".into(), bytes: content.len() as u64 };
        for start in [0, 1, PIECE - 1, PIECE + 5] {
            let mut read = Vec::new();
            object.get_read(start).unwrap().read_to_end(&mut read).unwrap();
            assert!(read == content[start as usize..]);
        }
        assert_eq!(object.get_bytes(7, 100).unwrap(), content[7..107]);
    }
}
