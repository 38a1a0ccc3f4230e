//! Incremental preprocessing: a change of settings redoes only the work that it affects, and the
//! result is the dataset that a new run makes.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use arrow::array::{Array, AsArray};
use arrow::datatypes::UInt64Type;
use parquet::file::reader::{FileReader, SerializedFileReader};
use serde_json::Value;
use tidemill_store::{Dataset, Split};

use crate::common::{run_verb_ok, tidemill, tidemill_json, write_run, write_run_with_sides};

const ROWS: usize = 192;

fn preprocess(run: &str, settings: &[&str]) -> Value {
    run_verb_ok("preprocess", run, settings)
}

/// The numbers of images and captions that a command has encoded.
fn count_encoded(result: &Value) -> (u64, u64) {
    let encoded = &result["this_run"]["encoded"];
    (encoded["images"].as_u64().unwrap(), encoded["captions"].as_u64().unwrap())
}

/// Status, reason and caption of every row by sample id, and the tensors of all training rows as
/// f32.
type Content = (BTreeMap<u64, (String, Option<String>, Option<String>)>, BTreeMap<(u32, u64), Vec<f32>>);

fn read_content(folder: &Path, output: &str) -> Content {
    let dataset = Dataset::open(folder.join(output).join("dataset").to_str().unwrap()).unwrap();
    assert!(dataset.verify(|_| ()).unwrap().damaged.is_empty());
    let mut rows = BTreeMap::new();
    for batch in dataset.read_rows(&["sample_id", "status", "reason", "caption"]) {
        let batch = batch.unwrap();
        let ids = batch["sample_id"].as_primitive::<UInt64Type>();
        let text = |name: &str, row: usize| {
            let texts = batch[name].as_string::<i32>();
            texts.is_valid(row).then(|| texts.value(row).to_owned())
        };
        for row in 0..batch.num_rows() {
            let fate = (text("status", row).unwrap(), text("reason", row), text("caption", row));
            assert!(rows.insert(ids.value(row), fate).is_none(), "a sample twice");
        }
    }
    let mut tensors = BTreeMap::new();
    for bucket in dataset.spec().latents.keys() {
        let found = dataset.read_tensors(Split::Train, *bucket, usize::MAX).unwrap();
        let values = |bytes: &[u8]| -> Vec<f32> {
            bytes.as_chunks().0.iter().map(|bytes| half::f16::from_le_bytes(*bytes).to_f32()).collect()
        };
        let (latents, text) = (values(&found.latents), values(&found.text[0]));
        let n = found.sample_ids.len();
        for (i, id) in found.sample_ids.iter().enumerate() {
            let part = |all: &[f32]| all[i * all.len() / n..(i + 1) * all.len() / n].to_vec();
            tensors.insert((bucket.resolution, *id), [part(&latents), part(&text)].concat());
        }
    }
    (rows, tensors)
}

/// The source's files, sorted.
fn list_source_files(folder: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder.join("pairs")).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|e| e == "parquet")).collect();
    files.sort();
    files
}

/// Overwrites the images of a file with zeros, page headers included, except in the first and last
/// 64 KiB, which determine the identity of the file. Returns the number of row groups without any
/// image.
fn damage_images(path: &Path) -> usize {
    const ENDS: usize = 64 << 10;
    let metadata = SerializedFileReader::new(File::open(path).unwrap()).unwrap().metadata().clone();
    let mut bytes = std::fs::read(path).unwrap();
    let end = bytes.len() - ENDS;
    let mut whole = 0;
    for group in metadata.row_groups() {
        let images = group.columns().iter().find(|column| column.column_path().string() == "jpg").unwrap();
        let (start, length) = images.byte_range();
        let (start, stop) = (start as usize, (start + length) as usize);
        bytes[start.clamp(ENDS, end)..stop.clamp(ENDS, end)].fill(0);
        whole += usize::from(start >= ENDS && stop <= end);
    }
    std::fs::write(path, bytes).unwrap();
    whole
}

/// Asserts equal rows, and tensors that differ only by rounding, because encode batches contain
/// other rows.
fn assert_same(one: &Content, other: &Content) {
    assert!(one.0.keys().eq(other.0.keys()));
    for (id, fate) in &one.0 {
        assert_eq!(fate, &other.0[id]);
    }
    assert!(one.1.keys().eq(other.1.keys()) && !one.1.is_empty());
    for (key, tensor) in &one.1 {
        let scale = tensor.iter().fold(1.0_f32, |scale, x| scale.max(x.abs()));
        let worst = tensor.iter().zip(&other.1[key]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst <= 2e-3 * scale, "{key:?}: {worst} of {scale}");
    }
}

#[test]
fn changed_settings_redo_only_the_affected_work() {
    let folder = tempfile::tempdir().unwrap();
    let run = write_run(folder.path(), ROWS);
    let first = preprocess(&run, &[]);
    let kept = first["rows"]["kept"].as_u64().unwrap();
    let (images, captions) = count_encoded(&first);
    assert!(captions == kept && images > kept && kept < ROWS as u64);

    // Each result is compared with that of a new run with the same settings.
    let fresh = format!("output={}", folder.path().join("fresh").display());
    let step = |settings: &[&str]| {
        let result = preprocess(&run, settings);
        std::fs::remove_dir_all(folder.path().join("fresh")).ok();
        let from_nothing = preprocess(&run, &[settings, &[&fresh]].concat());
        assert_same(&read_content(folder.path(), "out"), &read_content(folder.path(), "fresh"));
        assert_eq!(result["rows"], from_nothing["rows"]);
        (result, count_encoded(&from_nothing))
    };

    // Another caption template: no image is encoded.
    let captioned = "caption.template=a picture of {caption}";
    let (result, _) = step(&[captioned]);
    assert_eq!(count_encoded(&result), (0, kept));

    // A stricter filter: nothing is encoded.
    let (result, _) = step(&[captioned, "filter.score.score.min=5.5"]);
    assert_eq!(count_encoded(&result), (0, 0));
    let fewer = result["rows"]["kept"].as_u64().unwrap();
    assert!(fewer < kept);

    // A looser filter: only the new rows are encoded.
    let (result, (all_images, all_captions)) = step(&[captioned, "filter.score.score.min=4.0"]);
    let more = result["rows"]["kept"].as_u64().unwrap();
    assert!(more > kept && all_captions == more);
    let (new_images, new_captions) = count_encoded(&result);
    assert!(new_captions == more - fewer && new_images < all_images, "{new_images} of {all_images}");

    // Another resolution: images at that resolution are encoded, and no caption.
    let (result, (all_images, _)) =
        step(&[captioned, "filter.score.score.min=4.0", "prepare.resolutions=[64, 32, 48]"]);
    let (new_images, new_captions) = count_encoded(&result);
    assert!(new_captions == 0 && 0 < new_images && new_images < all_images);

    // Another crop: all images are encoded, and no caption.
    let (result, (all_images, _)) = step(&[captioned, "filter.score.score.min=4.0", "prepare.crop=random"]);
    let (new_images, new_captions) = count_encoded(&result);
    assert_eq!((new_images, new_captions), (all_images, 0));
}

#[test]
fn new_caption_template_reads_no_image() {
    let folder = tempfile::tempdir().unwrap();
    let run = write_run_with_sides(folder.path(), ROWS, 200..=256);
    let first = preprocess(&run, &[]);
    let damaged: usize = list_source_files(folder.path()).iter().map(|path| damage_images(path)).sum();
    assert!(damaged > 0, "the files are too small for the test");

    let captioned = "caption.template=a picture of {caption}";
    let second = preprocess(&run, &[captioned]);
    assert_eq!(second["rows"], first["rows"]);
    let kept = first["rows"]["kept"].as_u64().unwrap();
    assert_eq!(count_encoded(&second), (0, kept));

    // A new run reads the images and notices the damage.
    let fresh = format!("output={}", folder.path().join("fresh").display());
    let (code, result) = tidemill_json(&["preprocess", &run, "--set", captioned, "--set", &fresh]);
    let message = result["error"]["message"].as_str().unwrap_or_default();
    assert!(code == 2 && message.contains("damaged"), "{result}");
}

#[test]
fn only_added_files_are_processed_and_removed_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let run = write_run(folder.path(), ROWS);
    let first = preprocess(&run, &[]);
    let file = folder.path().join("pairs/added.parquet");
    std::fs::copy(&list_source_files(folder.path())[0], &file).unwrap();
    let second = preprocess(&run, &[]);
    let number = |result: &Value, part: &str, name: &str| result[part][name].as_u64().unwrap();
    let added = number(&second, "units", "total") - number(&first, "units", "total");
    assert!(added > 0 && number(&second, "units", "done") == added);
    assert_eq!(number(&second, "this_run", "rows"), number(&second, "rows", "read") - ROWS as u64);

    // A partly mounted source must not make a smaller dataset without a message.
    std::fs::remove_file(&file).unwrap();
    let third = tidemill(&["preprocess", &run]);
    let log = String::from_utf8_lossy(&[third.stdout, third.stderr].concat()).into_owned();
    let kept = number(&second, "rows", "kept") - number(&first, "rows", "kept");
    let removed = format!(
        "not in the source any more ({}): the new snapshot is without their {kept} rows",
        file.display()
    );
    assert!(log.contains(&removed), "{log}");
}
