//! The bytes of a file, decompressed if its first bytes say that it is compressed by gzip or zstd.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use zstd::stream::read::Decoder as ZstdDecoder;

/// The first bytes of gzip's and zstd's frames.
const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// The largest window of zstd, as a power of two: 128 MiB, as its command line has it. More memory
/// must be asked for there, too.
const MAX_ZSTD_WINDOW_LOG: u32 = 27;

/// A file's name without the end that says how it is compressed; `None` if it has no such end.
pub fn strip_compressed_end(uri: &str) -> Option<&str> {
    [".gz", ".zst", ".zstd"].iter().find_map(|end| uri.strip_suffix(end))
}

/// Whether a file is compressed, by its name. Such a file can only be read from its start.
pub fn has_compressed_name(uri: &str) -> bool {
    strip_compressed_end(uri).is_some()
}

/// A file's bytes.
pub enum Decompressed<R: Read> {
    /// Without compression.
    Plain(BufReader<R>),
    /// gzip, in one or several members.
    Gzip(Box<MultiGzDecoder<BufReader<R>>>),
    /// Zstandard, in one or several frames.
    Zstd(Box<ZstdDecoder<'static, BufReader<R>>>),
    /// The decoder could not be set up.
    Failed(String),
}

fn open_zstd<R: Read>(reader: BufReader<R>) -> io::Result<Box<ZstdDecoder<'static, BufReader<R>>>> {
    let mut decoder = ZstdDecoder::with_buffer(reader)?;
    decoder.window_log_max(MAX_ZSTD_WINDOW_LOG)?;
    Ok(Box::new(decoder))
}

impl<R: Read> Decompressed<R> {
    /// Looks at the first bytes.
    pub fn new(reader: R) -> Self {
        let mut reader = BufReader::new(reader);
        // An error here is met again by the first read.
        let start = reader.fill_buf().unwrap_or_default();
        if start.starts_with(&GZIP) {
            return Self::Gzip(Box::new(MultiGzDecoder::new(reader)));
        }
        if start.starts_with(&ZSTD) {
            return open_zstd(reader).map_or_else(|e| Self::Failed(e.to_string()), Self::Zstd);
        }
        Self::Plain(reader)
    }
}

impl<R: Read> Read for Decompressed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(reader) => reader.read(buffer),
            Self::Gzip(reader) => reader.read(buffer),
            Self::Zstd(reader) => reader.read(buffer),
            Self::Failed(problem) => Err(io::Error::other(problem.clone())),
        }
    }
}
