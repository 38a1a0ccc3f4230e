//! Adapts an object of a store to the `parquet` crate, which reads it by range.

use std::io::{self, Read};

use bytes::{Buf, Bytes};
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};
use tidemill_io::Location;

/// Bytes fetched at a time.
const CHUNK: u64 = 1 << 20;

/// An object that is read by range.
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
    type T = ChunkedRead;

    fn get_read(&self, start: u64) -> parquet::errors::Result<ChunkedRead> {
        let object = Self { location: self.location.clone(), key: self.key.clone(), bytes: self.bytes };
        Ok(ChunkedRead { object, next: start, chunk: Bytes::new() })
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        self.range(start, start + length as u64).map_err(|e| ParquetError::External(Box::new(e)))
    }
}

/// Reads an object from some byte on.
pub(super) struct ChunkedRead {
    object: Object,
    next: u64,
    chunk: Bytes,
}

impl Read for ChunkedRead {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.chunk.is_empty() && self.next < self.object.bytes {
            self.chunk = self.object.range(self.next, self.next + CHUNK).map_err(io::Error::other)?;
            self.next += self.chunk.len() as u64;
        }
        let n = buffer.len().min(self.chunk.len());
        self.chunk.copy_to_slice(&mut buffer[..n]);
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_is_read_from_any_offset_to_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let location = Location::open(folder.path().to_str().unwrap()).unwrap();
        let content: Vec<u8> = (0..CHUNK as u32 + 70_000).map(|i| (i % 251) as u8).collect();
        location.put("x", Bytes::from(content.clone())).unwrap();
        let object = Object { location, key: "x".into(), bytes: content.len() as u64 };
        for start in [0, 1, CHUNK - 1, CHUNK + 5] {
            let mut read = Vec::new();
            object.get_read(start).unwrap().read_to_end(&mut read).unwrap();
            assert!(read == content[start as usize..]);
        }
        assert_eq!(object.get_bytes(7, 100).unwrap(), content[7..107]);
    }
}
