//! Crops, flips and aspect buckets of `Prepare`: random draws are uniform and depend on the sample
//! id only, and Pillow reproduces the pixels from the recorded crops.

use std::path::Path;
use std::sync::Arc;

use crate::support;
use crate::support::TOKENIZER;
use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BooleanArray, RecordBatch, StringArray, UInt32Array, UInt64Array,
};
use arrow::compute::{concat_batches, take_record_batch};
use arrow::datatypes::UInt32Type;
use serde_json::{Value, json};
use tidemill_data::random::{Purpose, draw};
use tidemill_data::{CaptionConfig, FilterConfig, Prepare, PrepareConfig, SourceConfig};
use tidemill_testing::seed;

fn stage(config: Value) -> Prepare {
    let config: PrepareConfig = serde_json::from_value(config).unwrap();
    let (filter, source) = (FilterConfig::default(), SourceConfig::default());
    let caption = CaptionConfig::default();
    Prepare::new(&config, &filter, &source, &caption, seed(), TOKENIZER.clone()).unwrap()
}

/// Blocks of random colours with random detail.
fn png(number: u64, width: u32, height: u32) -> Vec<u8> {
    let random = |x: u32, y: u32| draw(seed() ^ number, u64::from(x), Purpose::Crop, y).to_le_bytes();
    let pixel = |x, y| {
        let (block, detail) = (random(x / 29, y / 23), random(x, y));
        image::Rgb([0, 1, 2].map(|c| (block[c] / 2).saturating_add(detail[c] / 2)))
    };
    support::png(&image::RgbImage::from_fn(width, height, pixel))
}

fn batch(images: &[Vec<u8>]) -> RecordBatch {
    let rows = images.len() as u64;
    RecordBatch::try_from_iter([
        ("image", Arc::new(BinaryArray::from_iter_values(images)) as ArrayRef),
        ("caption", Arc::new(StringArray::from_iter_values(images.iter().map(|_| "a")))),
        ("sample_id", Arc::new(UInt64Array::from_iter_values((0..rows).map(|row| 7 + 3 * row)))),
        ("source_row", Arc::new(UInt64Array::from_iter_values(0..rows))),
    ])
    .unwrap()
}

fn list(output: &RecordBatch, column: &str, row: usize) -> Vec<u32> {
    output[column].as_fixed_size_list().value(row).as_primitive::<UInt32Type>().values().to_vec()
}

fn flipped(output: &RecordBatch) -> &BooleanArray {
    output["flipped"].as_boolean()
}

/// Writes the images, and what is recorded of each usable row, for Pillow.
fn record(folder: &Path, output: &RecordBatch, resolution: u32, images: &[Vec<u8>], index: &mut Vec<Value>) {
    let pixels = output[&*format!("pixels_{resolution}")].as_binary::<i64>();
    for row in (0..output.num_rows()).filter(|row| pixels.is_valid(*row)) {
        let name = index.len();
        std::fs::write(folder.join(format!("{name}.png")), &images[row]).unwrap();
        std::fs::write(folder.join(format!("{name}.ours")), pixels.value(row)).unwrap();
        index.push(json!({
            "file": format!("{name}.png"), "pixels": format!("{name}.pillow"),
            "crop": list(output, &format!("crop_{resolution}"), row),
            "size": list(output, &format!("size_{resolution}"), row),
            "flipped": flipped(output).value(row),
        }));
    }
}

#[test]
fn pillow_reproduces_pixels_from_the_recorded_crops() {
    let folder = tempfile::tempdir().unwrap();
    // Some images are too small for the larger resolution. Shapes reach from three times as wide as
    // high to the opposite, for every seed.
    let short = |i| 60 + (draw(seed(), i, Purpose::Caption, 0) % 200) as u32;
    let long = |i: u64| short(i) + short(i) * (i % 12) as u32 * 2 / 11;
    let images: Vec<Vec<u8>> =
        (0..24).map(|i| if i < 12 { png(i, long(i), short(i)) } else { png(i, short(i), long(i)) }).collect();
    let mut index = Vec::new();
    for crop in ["center", "random", "bucket"] {
        let output = stage(json!({"resolutions": [64, 128], "crop": crop, "flip": true}));
        let output = output.run(&batch(&images)).unwrap();
        [64, 128].iter().for_each(|&r| record(folder.path(), &output, r, &images, &mut index));
    }
    std::fs::write(folder.path().join("index.json"), json!(index).to_string()).unwrap();
    support::python("crops.py", folder.path());

    let sizes: std::collections::BTreeSet<String> =
        index.iter().map(|case| case["size"].to_string()).collect();
    assert!(sizes.len() > 6 && index.len() > 60, "{} images of sizes {sizes:?}", index.len());
    let (mut different, mut values) = (0, 0);
    for (name, case) in index.iter().enumerate() {
        let read = |part: &str| std::fs::read(folder.path().join(format!("{name}.{part}"))).unwrap();
        let (ours, pillow) = (read("ours"), read("pillow"));
        assert_eq!(ours.len(), pillow.len(), "{case}");
        let differences: Vec<u8> = ours.iter().zip(&pillow).map(|(a, b)| a.abs_diff(*b)).collect();
        assert!(differences.iter().all(|&d| d <= 1), "{case}");
        different += differences.iter().filter(|&&d| d > 0).count();
        values += ours.len();
    }
    let share = different as f64 / values as f64;
    println!("{} images: {:.4} % of {values} values differ, by 1", index.len(), 100.0 * share);
    assert!(share <= 0.002);
}

#[test]
fn random_crops_are_uniform_and_half_the_images_are_flipped() {
    const ROWS: usize = 4000;
    let images = [vec![png(1, 24, 16); ROWS], vec![png(2, 16, 27); ROWS]];
    let prepare = stage(json!({"resolutions": [8, 16], "crop": "random", "flip": true}));
    for (images, axis, offsets) in [(&images[0], 0, 9), (&images[1], 1, 12)] {
        let output = prepare.run(&batch(images)).unwrap();
        let places = |resolution: u32| -> Vec<usize> {
            let column = format!("crop_{resolution}");
            (0..ROWS).map(|row| list(&output, &column, row)[axis] as usize).collect()
        };
        for resolution in [8, 16] {
            let mut counts = vec![0.0; offsets];
            places(resolution).into_iter().for_each(|place| counts[place] += 1.0);
            let expected = ROWS as f64 / offsets as f64;
            let chi_squared: f64 = counts.iter().map(|n| (n - expected).powi(2) / expected).sum();
            // With 11 degrees of freedom, 45 is exceeded once in 200,000 seeds.
            assert!(chi_squared < 45.0, "{chi_squared}: {counts:?}");
        }
        assert_ne!(places(8), places(16), "each resolution draws its own");
        let mirrored = flipped(&output).true_count() as f64;
        assert!((mirrored - ROWS as f64 / 2.0).abs() < 5.0 * (ROWS as f64 / 4.0).sqrt(), "{mirrored}");
    }
}

#[test]
fn random_draws_do_not_depend_on_the_batch() {
    let images: Vec<Vec<u8>> = (0..40).map(|i| png(i, 40 + i as u32, 30)).collect();
    let input = batch(&images);
    let prepare = stage(json!({"resolutions": [16, 24], "crop": "random", "flip": true}));
    let whole = prepare.run(&input).unwrap();
    for rows in [1, 7] {
        let parts = (0..40).step_by(rows).map(|at| prepare.run(&input.slice(at, rows.min(40 - at))).unwrap());
        assert_eq!(concat_batches(&whole.schema(), &parts.collect::<Vec<_>>()).unwrap(), whole);
    }
    let backwards = UInt32Array::from_iter_values((0..40).rev());
    let reversed = prepare.run(&take_record_batch(&input, &backwards).unwrap()).unwrap();
    assert_eq!(take_record_batch(&reversed, &backwards).unwrap(), whole);
}

#[test]
fn image_smaller_than_its_bucket_is_not_used_at_that_resolution() {
    let prepare = stage(json!({"resolutions": [64, 128], "crop": "bucket"}));
    // 4 : 1 at 64 is the bucket 128 x 32, at 128 it is 256 x 64.
    let images = [png(1, 260, 65), png(2, 255, 64), png(3, 127, 31), png(4, 70, 64)];
    let output = prepare.run(&batch(&images)).unwrap();
    assert_eq!((list(&output, "size_64", 0), list(&output, "size_128", 0)), (vec![128, 32], vec![256, 64]));
    assert_eq!(list(&output, "crop_128", 0), [0, 0, 260, 65]);
    assert!(output["pixels_64"].is_valid(1) && output["pixels_128"].is_null(1));
    assert_eq!(output["reason"].as_string::<i32>().value(2), "resolution");
    assert_eq!(list(&output, "size_64", 3), [64, 64]);
    assert!(output.column_by_name("flipped").is_none());
}
