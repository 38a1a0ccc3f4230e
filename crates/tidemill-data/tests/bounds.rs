//! Sizes that a file claims are not allocated: the bounds of docs/decoding.md, measured. This test
//! needs a binary of its own, because it counts all memory with a global allocator.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "integration/support/mod.rs"]
mod support;

use std::alloc::System;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{BinaryArray, RecordBatch, StringArray};
use cap::Cap;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use parquet::basic::Compression as PageCompression;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader, ParquetMetaDataWriter};
use parquet::file::properties::WriterProperties;
use tidemill_data::OneOrMany;
use tidemill_data::{RowError, SourceConfig, decode};

#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, usize::MAX);

const MIB: usize = 1 << 20;

/// Runs the work and checks that it allocates at most `most` bytes besides its input.
#[track_caller]
fn within<T>(name: &str, most: usize, work: impl FnOnce() -> T) -> T {
    // The maximum covers the whole process, so cases that need more memory come later.
    let before = MEMORY.allocated();
    let result = work();
    let used = MEMORY.max_allocated().saturating_sub(before);
    println!("{name}: at most {} KiB", used >> 10);
    assert!(used <= most, "{name}: {used} bytes");
    result
}

#[test]
fn claimed_sizes_are_not_allocated() {
    footers();
    pages();
    images();
}

/// The error for a Parquet file of these bytes.
fn refusal(bytes: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    std::fs::write(&path, bytes).unwrap();
    let config = SourceConfig { uri: OneOrMany::One(path.display().to_string()), ..Default::default() };
    let source = match support::open(&config) {
        Ok(source) => source,
        Err(error) => return error.to_string(),
    };
    let units = source.units().unwrap();
    let batches = units.iter().flat_map(|unit| source.read(unit).unwrap());
    batches.into_iter().find_map(Result::err).expect("an error").to_string()
}

fn ended(mut data: Vec<u8>, footer: &[u8]) -> Vec<u8> {
    data.extend(footer);
    data.extend((footer.len() as u32).to_le_bytes());
    data.extend(b"PAR1");
    data
}

fn footers() {
    // Version 1; a schema of one element `a`; no rows; as many row groups as the number can
    // express.
    let footer = b"\x15\x02\x19\x1c\x48\x01a\x15\x00\x00\x16\x00\x19\xfc\xff\xff\xff\xff\x07\x00";
    let bytes = ended(b"PAR1".to_vec(), footer);
    let error = within("2^31 row groups", 4 * MIB, || refusal(&bytes));
    assert!(error.contains("a list is too long"), "{error}");

    let many = rewritten(|metadata| {
        let groups = metadata.row_groups().iter().cloned();
        let groups = groups.map(|group| group.into_builder().set_num_rows(1 << 40).build().unwrap());
        metadata.clone().into_builder().set_row_groups(groups.collect()).build()
    });
    let error = within("2^40 rows", 16 * MIB, || refusal(&many));
    assert!(error.contains("it ends at row 3 where 1099511627776 were promised"), "{error}");
}

/// A Snappy page that claims 2 GiB.
fn pages() {
    let mut bytes = file();
    // The header of the first page, behind the magic number: its kind, then
    // `uncompressed_page_size`, whose one byte is replaced by the five of the greatest number.
    assert_eq!(bytes[4..7], [0x15, 0x00, 0x15]);
    bytes.splice(7..8, [0xfe, 0xff, 0xff, 0xff, 0x0f]);
    let error = within("a page of 2 GiB", 24 * MIB, || refusal(&bytes));
    assert!(error.contains("claims to hold 2147483647"), "{error}");
}

/// Three rows, compressed with Snappy, without dictionaries.
fn file() -> Vec<u8> {
    let image = BinaryArray::from_vec(vec![b"a", b"bc", b""]);
    let caption = StringArray::from(vec!["x", "y", "z"]);
    let batch =
        RecordBatch::try_from_iter([("image", Arc::new(image) as _), ("caption", Arc::new(caption) as _)]);
    let properties = WriterProperties::builder()
        .set_compression(PageCompression::SNAPPY)
        .set_dictionary_enabled(false)
        .build();
    support::parquet(&batch.unwrap(), Some(properties))
}

/// The file of [`file`] with another footer.
fn rewritten(change: impl FnOnce(&ParquetMetaData) -> ParquetMetaData) -> Vec<u8> {
    let bytes = file();
    let (rest, ending) = bytes.split_last_chunk::<8>().unwrap();
    let length = u32::from_le_bytes(*ending.first_chunk().unwrap()) as usize;
    let (data, footer) = rest.split_at(rest.len() - length);
    let metadata = change(&ParquetMetaDataReader::decode_metadata(footer).unwrap());
    let mut bytes = data.to_vec();
    ParquetMetaDataWriter::new(&mut bytes, &metadata).finish().unwrap();
    bytes
}

fn images() {
    // 300 MB that compress well.
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::fast());
    let zeros = vec![0; MIB];
    (0..300).for_each(|_| packed.write_all(&zeros).unwrap());
    let packed = packed.finish().unwrap();
    let small = corpus("adam7.png");
    let bombs: [(&[u8; 4], &[u8]); 3] =
        [(b"iCCP", b"p\0\0"), (b"zTXt", b"a\0\0"), (b"iTXt", b"XML:com.adobe.xmp\0\x01\0\0\0")];
    for (name, head) in bombs {
        let bytes = with_chunk(&small, name, &[head, packed.as_slice()].concat());
        let text = String::from_utf8_lossy(name);
        let info = within(&format!("{text} of 300 MB"), 80 * MIB, || decode::probe(&bytes)).unwrap();
        assert!(!info.icc, "{text}");
        let image = within(&format!("{text} of 300 MB"), 80 * MIB, || decode::decode(&bytes)).unwrap();
        assert_eq!(image, decode::decode(&small).unwrap(), "{text}");
    }

    // A frame far beyond its canvas.
    let gif =
        b"GIF89a\x01\0\x01\0\x80\0\0\0\0\0\xff\xff\xff\x2c\0\0\0\0\xff\xff\xff\xff\0\x02\x02\x44\x01\0\x3b";
    let error = within("a GIF's frame of 65535x65535", 80 * MIB, || decode::decode(gif)).unwrap_err();
    assert!(matches!(error, RowError::Size(_)), "{error}");

    // A strip far beyond its image.
    let tiff = corpus("jpeg-strip-of-16383x16383");
    let error = within("a TIFF's strip of 16383x16383", 80 * MIB, || decode::decode(&tiff)).unwrap_err();
    assert!(error.to_string().contains("16383x16383 in a TIFF of 247 pixels"), "{error}");
}

fn corpus(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/decode");
    std::fs::read(folder.join(name)).unwrap()
}

/// A PNG with one more chunk behind its header.
fn with_chunk(png: &[u8], name: &[u8; 4], data: &[u8]) -> Vec<u8> {
    const HEADER: usize = 8 + 25;
    let (header, rest) = png.split_at(HEADER);
    let mut crc = flate2::Crc::new();
    crc.update(name);
    crc.update(data);
    let length = (data.len() as u32).to_be_bytes();
    [header, &length, name, data, &crc.sum().to_be_bytes(), rest].concat()
}
