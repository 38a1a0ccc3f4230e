//! Shared helpers: Python scripts of the reference libraries, and fixtures.

#![allow(dead_code, reason = "tests/bounds.rs uses only a part")]

use std::io::{Cursor, Write};
use std::path::Path;
use std::sync::{Arc, LazyLock};

use arrow::array::RecordBatch;
use flate2::write::GzEncoder;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use tidemill_data::{CaptionConfig, ClipTokenizer, FilterConfig, Source, SourceConfig, source};
use tidemill_testing::seed;

/// Runs `tests/python/<script>` with the seed and a folder to write into.
pub fn python(script: &str, folder: &Path) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python").join(script);
    tidemill_testing::python(&script, &[&seed().to_string(), folder.to_str().unwrap()]);
}

/// Parses a JSON file.
pub fn json<T: serde::de::DeserializeOwned>(path: &Path) -> T {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap()
}

/// Opens a source without filters.
pub fn open(config: &SourceConfig) -> tidemill_data::Result<Box<dyn Source>> {
    source::open(config, &FilterConfig::default(), &CaptionConfig::default())
}

pub fn png(image: &image::RgbImage) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    image.write_to(&mut bytes, image::ImageFormat::Png).unwrap();
    bytes.into_inner()
}

pub fn jpeg(image: &image::RgbImage) -> Vec<u8> {
    let (width, height) = (image.width() as usize, image.height() as usize);
    let (pixels, format) = (image.as_raw().as_slice(), turbojpeg::PixelFormat::RGB);
    let image = turbojpeg::Image { pixels, width, pitch: 3 * width, height, format };
    turbojpeg::compress(image, 90, turbojpeg::Subsamp::Sub2x2).unwrap().to_vec()
}

/// A Parquet file of one batch.
pub fn parquet(batch: &RecordBatch, properties: Option<WriterProperties>) -> Vec<u8> {
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), properties).unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap()
}

/// Writes a tar of members, given as name and data.
pub fn tar<N: AsRef<Path>, D: AsRef<[u8]>>(members: impl IntoIterator<Item = (N, D)>) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, data) in members {
        let data = data.as_ref();
        let mut header = tar::Header::new_gnu();
        header.set_size(data.len() as u64);
        tar.append_data(&mut header, name, data).unwrap();
    }
    tar.into_inner().unwrap()
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(bytes).unwrap();
    gzip.finish().unwrap()
}

/// A tokenizer of bytes, for tests that need any tokenizer.
pub static TOKENIZER: LazyLock<Arc<ClipTokenizer>> =
    LazyLock::new(|| Arc::new(byte_tokenizer(tempfile::tempdir().unwrap().path())));

/// The smallest folder that opens as a CLIP tokenizer: bytes, without merges.
fn byte_tokenizer(folder: &Path) -> ClipTokenizer {
    let printable = (0x21..=0x7e_u32).chain(0xa1..=0xac).chain(0xae..=0xff);
    let bytes: Vec<String> =
        printable.chain(0x100..=0x143).filter_map(char::from_u32).map(String::from).collect();
    let ends = bytes.iter().map(|byte| format!("{byte}</w>"));
    let words = bytes.iter().cloned().chain(ends).chain(["<|startoftext|>".into(), "<|endoftext|>".into()]);
    let vocab: std::collections::BTreeMap<String, usize> =
        words.enumerate().map(|(id, word)| (word, id)).collect();
    std::fs::write(folder.join("vocab.json"), serde_json::to_string(&vocab).unwrap()).unwrap();
    std::fs::write(folder.join("merges.txt"), "#version: 0.2\n").unwrap();
    ClipTokenizer::open(folder).unwrap()
}
