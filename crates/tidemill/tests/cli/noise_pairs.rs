//! Pairs with images of noise, of any size, in Parquet files or tars.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryArray, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use turbojpeg::{Image, PixelFormat, Subsamp};

use crate::common::models_folder;

/// An image with its caption.
#[derive(Clone)]
pub struct Pair {
    pub key: String,
    pub jpeg: Vec<u8>,
    pub caption: String,
}

/// Draws pairs with images of these widths and heights. No two images have the same bytes.
pub fn draw_pairs(sizes: impl IntoIterator<Item = (usize, usize)>) -> Vec<Pair> {
    let mut images = HashMap::new();
    let pair = |(number, size): (usize, (usize, usize))| {
        let jpeg: &Vec<u8> = images.entry(size).or_insert_with(|| draw_noise(size));
        // A JPEG comment with the pair's number, after the marker that starts the image.
        let comment = (number as u64).to_be_bytes();
        let jpeg = [&jpeg[..2], &[0xff, 0xfe, 0, 10], &comment, &jpeg[2..]].concat();
        Pair { key: format!("{number:06}"), jpeg, caption: format!("picture {number}") }
    };
    sizes.into_iter().enumerate().map(pair).collect()
}

/// Draws a JPEG of grey noise. It has about half a byte for each pixel.
fn draw_noise((width, height): (usize, usize)) -> Vec<u8> {
    let mut state = 1_u64;
    let mut pixels = Vec::with_capacity(3 * width * height);
    for _ in 0..width * height {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        pixels.extend([96 + (state >> 58) as u8; 3]);
    }
    let image = Image { pixels: &pixels[..], width, pitch: 3 * width, height, format: PixelFormat::RGB };
    turbojpeg::compress(image, 85, Subsamp::Sub2x2).unwrap().to_vec()
}

/// Writes a Parquet file with these row groups. Each column chunk has a dictionary, as in files of
/// pyarrow.
pub fn write_parquet(path: &Path, groups: &[&[Pair]]) {
    let strings = |pairs: &[Pair], text: fn(&Pair) -> &String| {
        Arc::new(StringArray::from_iter_values(pairs.iter().map(text))) as ArrayRef
    };
    let batch = |pairs: &[Pair]| {
        let images = BinaryArray::from_iter_values(pairs.iter().map(|pair| &pair.jpeg));
        RecordBatch::try_from_iter([
            ("image", Arc::new(images) as ArrayRef),
            ("caption", strings(pairs, |pair| &pair.caption)),
            ("key", strings(pairs, |pair| &pair.key)),
        ])
    };
    let properties = WriterProperties::builder().set_dictionary_page_size_limit(usize::MAX).build();
    let schema = batch(&[]).unwrap().schema();
    let mut writer =
        ArrowWriter::try_new(std::fs::File::create(path).unwrap(), schema, Some(properties)).unwrap();
    for group in groups {
        writer.write(&batch(group).unwrap()).unwrap();
        writer.flush().unwrap();
    }
    writer.close().unwrap();
}

/// Writes a tar in the WebDataset format.
pub fn write_tar(path: &Path, pairs: &[Pair]) {
    let mut tar = tar::Builder::new(std::fs::File::create(path).unwrap());
    let mut append = |name: String, data: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_size(data.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, name, data).unwrap();
    };
    for pair in pairs {
        append(format!("{}.jpg", pair.key), &pair.jpeg);
        append(format!("{}.txt", pair.key), pair.caption.as_bytes());
    }
    tar.into_inner().unwrap();
}

/// Writes `folder/<format>.toml`, a run from `folder/<format>/*` into `folder/out`. Returns its
/// path.
pub fn write_run_file(folder: &Path, format: &str) -> String {
    let run = folder.join(format!("{format}.toml"));
    let text = format!(
        r#"
name = "test"
output = "{out}"
[source]
format = "{format}"
uri = "{files}/*"
rows_per_unit = 32
[prepare]
resolutions = [64]
[models]
path = "{models}"
[encode]
batch_size = 8
[engine]
device = "cpu"
encode.threads = 1
"#,
        out = folder.join("out").display(),
        files = folder.join(format).display(),
        models = models_folder().display(),
    );
    std::fs::write(&run, text).unwrap();
    run.display().to_string()
}
