//! Pixels compared with Pillow, and token ids compared with transformers, on random inputs.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use crate::support;
use serde::Deserialize;
use tidemill_data::prepare::Resample;
use tidemill_data::resize::Rect;
use tidemill_data::tokenizer::{CONTEXT, ClipTokenizer};
use tidemill_data::{decode, resize};

#[derive(Deserialize)]
struct Case {
    kind: String,
    format: String,
    icc: bool,
    width: u32,
    height: u32,
    crop: [u32; 4],
    size: (u32, u32),
    resample: Resample,
}

/// The greatest difference of two buffers, and the number of values that differ.
fn compare(ours: &[u8], theirs: &[u8]) -> (u8, usize) {
    assert_eq!(ours.len(), theirs.len());
    let differences = ours.iter().zip(theirs).map(|(a, b)| a.abs_diff(*b));
    let different = differences.clone().filter(|&d| d > 0).count();
    (differences.max().unwrap_or(0), different)
}

#[test]
fn pixels_equal_those_of_pillow() {
    let folder = tempfile::tempdir().unwrap();
    support::python("pixels.py", folder.path());
    let cases: Vec<Case> = support::json(&folder.path().join("index.json"));
    let read =
        |number: usize, part: &str| std::fs::read(folder.path().join(format!("{number}.{part}"))).unwrap();

    let mut kinds: BTreeMap<&str, (usize, u8)> = BTreeMap::new();
    let mut filters: BTreeMap<String, (usize, usize, u8)> = BTreeMap::new();
    for (number, case) in cases.iter().enumerate() {
        let Case { kind, width, height, crop: [x, y, w, h], size, .. } = case;
        let filter = format!("{:?}", case.resample);
        let name = format!("{number}: {kind} {width}x{height}, {w}x{h} at {x},{y} -> {size:?} by {filter}");
        let bytes = read(number, "bin");
        let info = decode::probe(&bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!((info.width, info.height), (*width, *height), "{name}");
        assert_eq!((info.format.name(), info.icc), (case.format.as_str(), case.icc), "{name}");
        let image = decode::decode(&bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
        let (d, _) = compare(&image.pixels, &read(number, "rgb"));
        let seen = kinds.entry(kind).or_default();
        *seen = (seen.0 + 1, seen.1.max(d));

        let theirs = read(number, "rgb");
        let image = decode::Rgb8 { pixels: theirs, ..image };
        let crop = Rect { x: *x, y: *y, width: *w, height: *h };
        let resized = resize::resize(&decode::Strip::from_image(image), crop, *size, case.resample).unwrap();
        let (d, n) = compare(&resized.pixels, &read(number, "resized"));
        assert!(d <= 1, "resizing {name}: a value differs by {d}");
        let seen = filters.entry(filter).or_default();
        *seen = (seen.0 + n, seen.1 + resized.pixels.len(), seen.2.max(d));
    }
    println!("decoding, kind: (images, max |d|): {kinds:#?}");
    println!("resizing, filter: (values that differ, values, max |d|): {filters:#?}");
    for (kind, (_, d)) in kinds {
        assert_eq!(d, 0, "{kind}: a value differs by {d}");
    }
    for (filter, (different, values, _)) in filters {
        assert!(different as f64 <= 0.002 * values as f64, "{filter}: {different} of {values} values differ");
    }
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

    // Stable Diffusion 1 has the same words, padded with the end of text.
    let plain = folder.path().join("plain");
    let second = ClipTokenizer::open(&plain).unwrap();
    std::fs::remove_file(plain.join("special_tokens_map.json")).unwrap();
    let first = ClipTokenizer::open(&plain).unwrap();
    assert_ne!(first.digest(), second.digest());
    let ids = first.encode("hello!");
    assert_eq!(ids[..4], [49406, 3306, 256, 49407]);
    assert_eq!(ids[4..], [49407; CONTEXT - 4]);
}
