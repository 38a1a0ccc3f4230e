//! Our pixels against Pillow's and our token ids against transformers', on inputs drawn at test time.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use serde::Deserialize;
use tidemill_data::prepare::Resample;
use tidemill_data::resize::Rect;
use tidemill_data::tokenizer::{CONTEXT, ClipTokenizer};
use tidemill_data::{decode, resize};

#[derive(Deserialize)]
struct Case {
    kind: String,
    width: u32,
    height: u32,
    /// Left, top, width, height.
    crop: [u32; 4],
    size: [u32; 2],
}

/// How far two buffers are apart: the greatest difference and the number of values that differ.
fn compare(ours: &[u8], theirs: &[u8]) -> (u8, usize) {
    assert_eq!(ours.len(), theirs.len());
    let differences = ours.iter().zip(theirs).map(|(a, b)| a.abs_diff(*b));
    let different = differences.clone().filter(|&d| d > 0).count();
    (differences.max().unwrap_or(0), different)
}

#[test]
fn pixels_equal_pillows() {
    let folder = tempfile::tempdir().unwrap();
    support::python("pixels.py", folder.path());
    let cases: Vec<Case> = support::json(&folder.path().join("index.json"));
    let read =
        |number: usize, part: &str| std::fs::read(folder.path().join(format!("{number}.{part}"))).unwrap();

    let mut kinds: BTreeMap<&str, (usize, u8)> = BTreeMap::new();
    let (mut worst, mut different, mut values) = (0, 0, 0);
    for (number, case) in cases.iter().enumerate() {
        let (kind, crop, size) = (&case.kind, case.crop, case.size);
        let name = format!("{number}: {kind} {}x{}, {crop:?} -> {size:?}", case.width, case.height);
        let bytes = read(number, "bin");
        assert_eq!(decode::probe(&bytes).unwrap(), (case.width, case.height), "{name}");
        let image = decode::decode(&bytes).unwrap();
        let (d, _) = compare(&image.pixels, &read(number, "rgb"));
        assert_eq!(d, 0, "decoding {name}");
        let kind = kinds.entry(kind).or_default();
        *kind = (kind.0 + 1, kind.1.max(d));

        let [x, y, width, height] = crop;
        let crop = Rect { x, y, width, height };
        let resized = resize::resize(&image, crop, size.into(), Resample::Bicubic).unwrap();
        let (d, n) = compare(&resized.pixels, &read(number, "resized"));
        assert!(d <= 1, "resizing {name}: a value differs by {d}");
        (worst, different, values) = (worst.max(d), different + n, values + resized.pixels.len());
    }
    println!("decoding, kind: (images, max |d|): {kinds:?}");
    let share = different as f64 / values as f64;
    println!("resizing: max |d| {worst} on {:.4} % of {values} values", 100.0 * share);
    assert!(share <= 0.002);
}

fn assert_same_ids(folder: &Path, captions: &[String]) {
    let expected: Vec<Vec<i32>> = support::json(&folder.join("ids.json"));
    let tokenizer = ClipTokenizer::open(folder).unwrap();
    assert_eq!(tokenizer.pad_id(), 0);
    let captions: Vec<&str> = captions.iter().map(String::as_str).collect();
    let start = Instant::now();
    let ids = tokenizer.encode_batch(&captions);
    println!("{} captions in {:.0} ms", captions.len(), start.elapsed().as_secs_f64() * 1e3);
    for (caption, (ids, expected)) in captions.iter().zip(ids.iter().zip(&expected)) {
        assert_eq!(ids.as_slice(), expected, "{caption:?}");
    }
}

#[test]
fn token_ids_equal_those_of_transformers() {
    let folder = tempfile::tempdir().unwrap();
    support::python("tokens.py", folder.path());
    let captions: Vec<String> = support::json(&folder.path().join("captions.json"));
    assert!(captions.len() >= 2000);
    assert_same_ids(&folder.path().join("plain"), &captions);
    assert_same_ids(&folder.path().join("normalized"), &captions);

    // Stable Diffusion 1: the same words, padded with the end of text.
    let plain = folder.path().join("plain");
    let second = ClipTokenizer::open(&plain).unwrap();
    std::fs::remove_file(plain.join("special_tokens_map.json")).unwrap();
    let first = ClipTokenizer::open(&plain).unwrap();
    assert_ne!(first.digest(), second.digest());
    let ids = first.encode("hello!");
    assert_eq!(ids[..4], [49406, 3306, 256, 49407]);
    assert_eq!(ids[4..], [49407; CONTEXT - 4]);
}
