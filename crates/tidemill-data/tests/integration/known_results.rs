//! Results of an earlier run make images unnecessary for `Prepare`, but only if they are about
//! these images.

use std::sync::Arc;

use crate::support;
use crate::support::TOKENIZER;
use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, RecordBatch, StringArray, UInt64Array};
use serde_json::{Value, json};
use tidemill_data::prepare::known_results;
use tidemill_data::{CaptionConfig, FilterConfig, Prepare, PrepareConfig, SourceConfig};

fn stage(config: Value) -> Prepare {
    filtered(config, json!({}))
}

fn filtered(config: Value, filter: Value) -> Prepare {
    let config: PrepareConfig = serde_json::from_value(config).unwrap();
    let filter: FilterConfig = serde_json::from_value(filter).unwrap();
    let source = SourceConfig::default();
    Prepare::new(&config, &filter, &source, &CaptionConfig::default(), 0, TOKENIZER.clone()).unwrap()
}

/// An image without large even areas.
fn draw_image(width: u32, height: u32) -> image::RgbImage {
    let pixel = |x: u32, y: u32| image::Rgb([(x * y) as u8, (37 * x) as u8, (x + 91 * y) as u8]);
    image::RgbImage::from_fn(width, height, pixel)
}

fn png(width: u32, height: u32) -> Option<Vec<u8>> {
    Some(support::png(&draw_image(width, height)))
}

/// An image whose header is readable and whose pixels are not.
fn damaged() -> Option<Vec<u8>> {
    let mut bytes = png(90, 80)?;
    bytes.truncate(bytes.len() / 2);
    Some(bytes)
}

fn batch(images: &[Option<Vec<u8>>]) -> RecordBatch {
    let rows = images.len() as u64;
    RecordBatch::try_from_iter([
        ("image", Arc::new(images.iter().map(Option::as_deref).collect::<BinaryArray>()) as ArrayRef),
        ("caption", Arc::new(StringArray::from_iter_values(images.iter().map(|_| "a")))),
        ("sample_id", Arc::new(UInt64Array::from_iter_values(0..rows))),
        ("source_row", Arc::new(UInt64Array::from_iter_values(0..rows))),
    ])
    .unwrap()
}

fn attach(images: &[Option<Vec<u8>>], earlier: &RecordBatch, tensors: &[&str]) -> RecordBatch {
    let tensors = tensors.iter().map(|&name| name.to_owned()).collect();
    known_results::attach(&batch(images), earlier, &tensors).unwrap()
}

/// Images that are kept, damaged, missing, and too small.
fn images() -> [Option<Vec<u8>>; 4] {
    [png(40, 32), damaged(), Some(b"<html>".to_vec()), png(9, 9)]
}

fn assert_same(one: &RecordBatch, other: &RecordBatch, except: &[&str]) {
    for field in one.schema().fields().iter().filter(|field| !except.contains(&field.name().as_str())) {
        assert_eq!(&one[field.name()], &other[field.name()], "{}", field.name());
    }
}

#[test]
fn known_results_make_images_unnecessary() {
    let prepare = stage(json!({"resolutions": [16], "hashes": true}));
    let earlier = prepare.run(&batch(&images())).unwrap();
    assert_eq!(earlier["sha256"].null_count(), 2, "hashed unless too small or no image");
    let (not_read, good) = ([const { None }; 4], ["latents_16", "text"]);
    let input = attach(&not_read, &earlier, &good);
    assert!(!prepare.needs_images(&input).unwrap());
    let output = prepare.run(&input).unwrap();
    assert_same(&output, &earlier, &["pixels_16", "token_ids"]);
    assert_eq!((output["pixels_16"].null_count(), output["token_ids"].null_count()), (4, 4));
}

#[test]
fn known_results_of_another_image_column_are_ignored() {
    let prepare = stage(json!({"resolutions": [16], "hashes": true}));
    let earlier = prepare.run(&batch(&images())).unwrap();
    // With another image column all latents have another digest; text embeddings are still valid.
    let others = [png(50, 60), png(33, 20), png(17, 16), damaged()];
    let fresh = prepare.run(&batch(&others)).unwrap();
    let output = prepare.run(&attach(&others, &earlier, &["text"])).unwrap();
    assert_same(&output, &fresh, &["token_ids"]);
    let embedded = [true, false, false, true];
    let tokens = output["token_ids"].as_fixed_size_list();
    assert!((0..4).all(|row| tokens.is_null(row) == embedded[row]));
    assert!(prepare.needs_images(&attach(&[const { None }; 4], &earlier, &["text"])).unwrap());
}

#[test]
fn same_rows_are_rejected_with_and_without_known_results() {
    let earlier = stage(json!({"resolutions": [16], "hashes": true})).run(&batch(&images())).unwrap();
    let digest = earlier["sha256"].as_fixed_size_binary().value(0);
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("list.txt");
    std::fs::write(&list, digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>()).unwrap();
    // Rows are rejected by header, by resolution and by bytes. Their hashes are then: none, none,
    // no `phash`.
    let cases = [
        (16, json!({"max_side": 39}), "max_side", [true, true]),
        (64, json!({}), "resolution", [true, true]),
        (16, json!({"opt_out": {"sha256": list}}), "opt_out.sha256", [false, true]),
    ];
    for (resolution, filter, reason, nulls) in cases {
        let prepare = filtered(json!({"resolutions": [resolution], "hashes": true}), filter);
        let fresh = prepare.run(&batch(&images())).unwrap();
        let output = prepare.run(&attach(&images(), &earlier, &["latents_16", "text"])).unwrap();
        assert_eq!(output["reason"].as_string::<i32>().value(0), reason);
        assert_eq!([output["sha256"].is_null(0), output["phash"].is_null(0)], nulls, "{reason}");
        assert_same(&output, &fresh, &["pixels_16", "token_ids"]);
    }
}

#[test]
fn pixels_do_not_depend_on_known_results() {
    let images = [Some(support::jpeg(&draw_image(400, 300)))];
    for (hashes, good) in [(true, 32), (false, 64)] {
        let prepare = stage(json!({"resolutions": [16, 32, 64], "scaled_decode": true, "hashes": hashes}));
        let fresh = prepare.run(&batch(&images)).unwrap();
        let output = prepare.run(&attach(&images, &fresh, &[&format!("latents_{good}")])).unwrap();
        assert_eq!(output[&*format!("pixels_{good}")].null_count(), 1);
        assert_eq!(&output["pixels_16"], &fresh["pixels_16"]);
    }
}
