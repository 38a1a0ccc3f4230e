//! The stage as a whole: every row gets exactly one status, in order, whatever is wrong with it.

use std::sync::Arc;

use crate::support;
use crate::support::TOKENIZER;
use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, Float64Array, RecordBatch, StringArray, UInt64Array,
};
use arrow::datatypes::{Int32Type, UInt32Type, UInt64Type};
use proptest::prelude::*;
use tidemill_data::prepare::Crop;
use tidemill_data::{Bounds, Columns, OneOrMany};
use tidemill_data::{CaptionConfig, FilterConfig, Prepare, PrepareConfig, SourceConfig, decode};

/// A gradient, so that neighbouring pixels differ.
fn draw_image(width: u32, height: u32) -> image::RgbImage {
    image::RgbImage::from_fn(width, height, |x, y| image::Rgb([x as u8, y as u8, (x + y) as u8]))
}

fn png(width: u32, height: u32) -> Vec<u8> {
    support::png(&draw_image(width, height))
}

fn jpeg(width: u32, height: u32) -> Vec<u8> {
    support::jpeg(&draw_image(width, height))
}

/// An input row.
#[derive(Debug, Clone)]
struct Pair {
    image: Option<Vec<u8>>,
    caption: Option<&'static str>,
    width: Option<f64>,
    score: Option<f64>,
}

fn good() -> Pair {
    Pair { image: Some(jpeg(40, 32)), caption: Some("a cat!"), width: Some(40.0), score: Some(5.0) }
}

fn batch(rows: &[Pair]) -> RecordBatch {
    RecordBatch::try_from_iter([
        ("image", Arc::new(rows.iter().map(|row| row.image.as_deref()).collect::<BinaryArray>()) as ArrayRef),
        ("caption", Arc::new(rows.iter().map(|row| row.caption).collect::<StringArray>())),
        ("w", Arc::new(rows.iter().map(|row| row.width).collect::<Float64Array>())),
        ("score", Arc::new(rows.iter().map(|row| row.score).collect::<Float64Array>())),
        ("sample_id", Arc::new(UInt64Array::from_iter_values(1000..1000 + rows.len() as u64))),
        ("source_row", Arc::new(UInt64Array::from_iter_values(50..50 + rows.len() as u64))),
    ])
    .unwrap()
}

fn source_config() -> SourceConfig {
    let columns = Columns { width: Some("w".into()), ..Columns::default() };
    SourceConfig { columns, carry: vec!["score".into()], ..SourceConfig::default() }
}

fn filter_config() -> FilterConfig {
    FilterConfig {
        min_side: Some(10),
        max_aspect: Some(3.0),
        caption_length: Bounds { min: Some(2), max: None },
        score: [("score".to_owned(), Bounds { min: Some(4.0), max: None })].into(),
        ..FilterConfig::default()
    }
}

fn stage(resolutions: &[u32]) -> Prepare {
    let config = PrepareConfig { resolutions: resolutions.to_vec(), ..PrepareConfig::default() };
    let caption = CaptionConfig::default();
    Prepare::new(&config, &filter_config(), &source_config(), &caption, 0, TOKENIZER.clone()).unwrap()
}

/// Rows with their expected status and the start of their reason.
fn cases() -> Vec<(Pair, &'static str, &'static str)> {
    let truncated = |mut bytes: Vec<u8>| {
        bytes.truncate(bytes.len() * 2 / 3);
        Some(bytes)
    };
    let garbage_after_header = |mut bytes: Vec<u8>| {
        let start = bytes.len() / 2;
        bytes[start..].fill(0);
        Some(bytes)
    };
    // Stray bytes before the end marker are common and harmless.
    let stray = |mut bytes: Vec<u8>| {
        let end = bytes.len() - 2;
        bytes.splice(end..end, [0x12, 0x34, 0x56]);
        Some(bytes)
    };
    vec![
        (good(), "kept", ""),
        (Pair { image: stray(jpeg(200, 200)), ..good() }, "kept", ""),
        (Pair { image: Some(png(33, 90)), ..good() }, "kept", ""),
        // The declared width is wrong or unknown; the decoded one is used.
        (Pair { width: Some(7.0), ..good() }, "kept", ""),
        (Pair { width: None, ..good() }, "kept", ""),
        (Pair { image: Some(jpeg(9, 20)), width: Some(400.0), ..good() }, "rejected", "min_side"),
        (Pair { image: Some(png(100, 20)), ..good() }, "rejected", "max_aspect"),
        (Pair { image: Some(png(12, 14)), ..good() }, "rejected", "resolution"),
        (Pair { caption: Some(" x "), ..good() }, "rejected", "caption_length"),
        (Pair { score: Some(3.9), ..good() }, "rejected", "score.score"),
        (Pair { score: None, ..good() }, "rejected", "score.score"),
        (Pair { score: Some(f64::NAN), ..good() }, "quarantined", "number: column `score` is NaN"),
        (Pair { width: Some(f64::INFINITY), ..good() }, "quarantined", "number: column `w` is inf"),
        (Pair { caption: None, ..good() }, "quarantined", "missing: the caption"),
        (Pair { image: None, ..good() }, "quarantined", "missing: the image"),
        (Pair { image: Some(vec![]), ..good() }, "quarantined", "format: the image has no bytes"),
        (Pair { image: Some(b"<!DOCTYPE html>".to_vec()), ..good() }, "quarantined", "format: "),
        (Pair { image: truncated(jpeg(200, 200)), ..good() }, "quarantined", "damaged: "),
        (Pair { image: truncated(png(200, 200)), ..good() }, "quarantined", "damaged: "),
        (Pair { image: garbage_after_header(jpeg(200, 200)), ..good() }, "quarantined", "damaged: "),
    ]
}

#[test]
fn rows_get_their_status_and_reason() {
    let (rows, expected): (Vec<_>, Vec<_>) = cases().into_iter().map(|(row, s, r)| (row, (s, r))).unzip();
    let output = stage(&[16]).run(&batch(&rows)).unwrap();
    for (row, (status, reason)) in expected.into_iter().enumerate() {
        let found = output["reason"].as_string::<i32>();
        let found = if found.is_valid(row) { found.value(row) } else { "" };
        assert_eq!(output["status"].as_string::<i32>().value(row), status, "row {row}: {found}");
        assert!(found.starts_with(reason) && found.is_empty() == reason.is_empty(), "row {row}: {found:?}");
    }
}

#[test]
fn kept_row_has_pixels_crop_and_tokens() {
    let output = stage(&[16, 24, 40]).run(&batch(&[good()])).unwrap();
    let image = decode::decode(&jpeg(40, 32)).unwrap();
    assert_eq!(output["width"].as_primitive::<UInt32Type>().value(0), 40);
    assert_eq!(output["height"].as_primitive::<UInt32Type>().value(0), 32);
    assert_eq!(output["format"].as_string::<i32>().value(0), "jpeg");
    assert!(!output["icc"].as_boolean().value(0));
    assert_eq!(output["sample_id"].as_primitive::<UInt64Type>().value(0), 1000);
    assert_eq!(output["source_row"].as_primitive::<UInt64Type>().value(0), 50);
    assert_eq!(output["score"].as_primitive::<arrow::datatypes::Float64Type>().value(0), 5.0);

    let crop = output["crop_24"].as_fixed_size_list().value(0);
    assert_eq!(crop.as_primitive::<UInt32Type>().values(), &[4, 0, 32, 32]);
    let size = output["size_24"].as_fixed_size_list().value(0);
    assert_eq!(size.as_primitive::<UInt32Type>().values(), &[24, 24]);
    // Planes: the means of the three colours differ as in the cropped original.
    let pixels = output["pixels_24"].as_binary::<i64>().value(0).to_vec();
    let mean = |values: Vec<u8>| values.iter().map(|&v| f64::from(v)).sum::<f64>() / values.len() as f64;
    for (colour, plane) in pixels.chunks(24 * 24).enumerate() {
        let cropped = (0..32 * 32).map(|i| image.pixels[3 * (40 * (i / 32) + 4 + i % 32) + colour]).collect();
        assert!((mean(plane.to_vec()) - mean(cropped)).abs() < 0.5, "colour {colour}");
    }
    // The short side is 32, so the row is not used at resolution 40.
    for column in ["pixels_40", "size_40", "crop_40"] {
        assert!(output[column].is_null(0));
    }

    let ids = output["token_ids"].as_fixed_size_list().value(0);
    assert_eq!(ids.as_primitive::<Int32Type>().values()[..], TOKENIZER.encode("a cat!"));
}

#[test]
fn scaled_decoding_keeps_crops_and_changes_the_digest() {
    let rows = batch(&[Pair { image: Some(jpeg(200, 120)), ..good() }]);
    let stage = |scaled_decode| {
        let config = PrepareConfig { resolutions: vec![24, 32], scaled_decode, ..PrepareConfig::default() };
        let caption = CaptionConfig::default();
        Prepare::new(&config, &filter_config(), &source_config(), &caption, 0, TOKENIZER.clone()).unwrap()
    };
    let (whole, scaled) = (stage(false), stage(true));
    assert_ne!(whole.digests().images, scaled.digests().images);
    let (whole, scaled) = (whole.run(&rows).unwrap(), scaled.run(&rows).unwrap());
    for column in ["crop_24", "crop_32", "width", "height"] {
        assert_eq!(&whole[column], &scaled[column]);
    }
    let pixels = |output: &RecordBatch| output["pixels_32"].as_binary::<i64>().value(0).to_vec();
    let distances = pixels(&whole).into_iter().zip(pixels(&scaled)).map(|(a, b)| a.abs_diff(b));
    assert!((1..=16).contains(&distances.max().unwrap()));
}

#[test]
fn rows_keys_and_ids_are_added_to_a_plain_table() {
    let rows = batch(&[good(), good()]).project(&[0, 1, 2, 3]).unwrap();
    let output = stage(&[16]).run(&rows).unwrap();
    assert_eq!(output["source_row"].as_primitive::<UInt64Type>().values(), &[0, 1]);
    assert_eq!(output["key"].as_string::<i32>().value(1), "table#1");
    let ids = output["sample_id"].as_primitive::<UInt64Type>();
    assert_ne!(ids.value(0), ids.value(1));
}

#[test]
fn carried_bytes_of_a_slice_count_the_slice_only() {
    let stage = stage(&[16]);
    let (two, many) = (batch(&[good(), good()]), batch(&vec![good(); 100]));
    assert!(stage.carried_bytes(&two) > 0);
    assert_eq!(stage.carried_bytes(&two), stage.carried_bytes(&many.slice(50, 2)));
}

#[test]
fn empty_batch_is_prepared() {
    let output = stage(&[16]).run(&batch(&[])).unwrap();
    assert_eq!(output.num_rows(), 0);
}

#[test]
fn missing_column_is_an_error_that_names_it() {
    let rows = batch(&[good()]);
    let error = stage(&[16]).run(&rows.project(&[0, 1, 2]).unwrap()).unwrap_err().to_string();
    assert!(error.contains("`score`") && error.contains("`image`, `caption`, `w`"), "{error}");
}

#[test]
fn each_digest_changes_with_its_inputs_only() {
    let seeded = |prepare: &PrepareConfig, filter: &FilterConfig, caption: &str, seed| {
        let mut source = source_config();
        source.columns.caption = OneOrMany::One(caption.into());
        let caption = CaptionConfig::default();
        Prepare::new(prepare, filter, &source, &caption, seed, TOKENIZER.clone()).unwrap().digests().clone()
    };
    let digests = |prepare: &_, filter: &_, caption: &str| seeded(prepare, filter, caption, 0);
    let (prepare, filter) = (PrepareConfig::default(), filter_config());
    let base = digests(&prepare, &filter, "caption");
    assert_eq!(base, digests(&prepare, &filter, "caption"));

    let filtered = digests(&prepare, &FilterConfig { min_side: Some(11), ..filter.clone() }, "caption");
    assert!(filtered.rows != base.rows && filtered.images == base.images && filtered.text == base.text);
    let larger = PrepareConfig { resolutions: vec![512], ..prepare.clone() };
    let larger = digests(&larger, &filter, "caption");
    assert!(larger.images != base.images && larger.text == base.text);
    let retold = digests(&prepare, &filter, "alt");
    assert!(retold.images == base.images && retold.text != base.text);

    // The seed changes images only if something is random.
    assert_eq!(seeded(&prepare, &filter, "caption", 1), base);
    let flipping = PrepareConfig { flip: true, ..prepare.clone() };
    let flipped = digests(&flipping, &filter, "caption");
    assert!(flipped.images != base.images && flipped.rows == base.rows && flipped.text == base.text);
    assert_ne!(seeded(&flipping, &filter, "caption", 1).images, flipped.images);

    // The list of buckets of a resolution affects that resolution only.
    let bucketed = PrepareConfig { resolutions: vec![64, 128], crop: Crop::Bucket, ..prepare };
    let listed = |resolution: &str, size| {
        let buckets = [(resolution.to_owned(), vec![size])].into();
        digests(&PrepareConfig { buckets, ..bucketed.clone() }, &filter, "caption").images
    };
    let (one, other) = (listed("128", [128, 128]), listed("128", [192, 96]));
    assert!(one[&64] == other[&64] && one[&128] != other[&128]);
}

#[test]
fn scaled_decoding_makes_pixels_depend_on_all_resolutions() {
    let images = |resolutions: &[u32], scaled_decode, hashes| {
        let resolutions = resolutions.to_vec();
        let config = PrepareConfig { resolutions, scaled_decode, hashes, ..PrepareConfig::default() };
        let (filter, caption) = (filter_config(), CaptionConfig::default());
        let stage = Prepare::new(&config, &filter, &source_config(), &caption, 0, TOKENIZER.clone()).unwrap();
        stage.digests().images.clone()
    };
    let whole = images(&[64], false, false);
    assert_eq!(whole[&64], images(&[64, 128], false, false)[&64]);
    let scaled = images(&[64, 128], true, false);
    assert_ne!(scaled[&64], images(&[64], true, false)[&64]);
    assert_eq!(scaled, images(&[128, 64], true, false));

    // A perceptual hash needs the full image.
    assert_eq!(images(&[64], false, true), whole);
    assert_ne!(images(&[64], true, false), whole);
    assert_eq!(images(&[64], true, true), whole);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// For any mixture of rows: each is returned once, the order is kept, and tensors exist exactly
    /// where they should.
    #[test]
    fn every_row_is_returned_once_in_order(picks in prop::collection::vec(0..cases().len(), 0..40)) {
        let cases = cases();
        let rows: Vec<Pair> = picks.iter().map(|&pick| cases[pick].0.clone()).collect();
        let prepare = stage(&[16]);
        let input = batch(&rows);
        let output = prepare.run(&input).unwrap();
        prop_assert_eq!(output.schema(), prepare.schema(&input.schema()).unwrap());
        prop_assert_eq!(output.num_rows(), rows.len());

        for (row, &pick) in picks.iter().enumerate() {
            let kept = cases[pick].1 == "kept";
            prop_assert_eq!(output["status"].as_string::<i32>().value(row), cases[pick].1);
            prop_assert_eq!(output["source_row"].as_primitive::<UInt64Type>().value(row), 50 + row as u64);
            // A readable header gives the size even if the pixels are damaged.
            prop_assert!(output["width"].is_valid(row) || cases[pick].1 == "quarantined");
            for column in ["pixels_16", "size_16", "crop_16", "token_ids"] {
                prop_assert_eq!(output[column].is_valid(row), kept);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// A damaged image is an error or an image, never a panic.
    #[test]
    fn the_decoder_survives_damage(
        which in 0..2_usize, cut in 0.0..1.0_f64, flips in prop::collection::vec((0.0..1.0_f64, any::<u8>()), 0..6),
    ) {
        let mut bytes = [jpeg(48, 40), png(48, 40)][which].clone();
        for (place, value) in flips {
            let at = (place * bytes.len() as f64) as usize;
            bytes[at] = value;
        }
        bytes.truncate((bytes.len() as f64 * (1.0 - cut * cut)) as usize);
        if let Ok(image) = decode::decode(&bytes) {
            prop_assert_eq!(image.pixels.len(), 3 * image.width as usize * image.height as usize);
        }
    }
}

#[test]
fn rows_can_be_quarantined_with_a_reason_of_the_caller() {
    let stage = stage(&[16]);
    let batch = batch(&[good(), good()]);
    let bad = stage.quarantine(&batch, "panic: prepare: oh").unwrap();
    assert_eq!(bad.schema(), stage.run(&batch).unwrap().schema());
    for (column, value) in [("status", "quarantined"), ("reason", "panic: prepare: oh")] {
        assert!(bad[column].as_string::<i32>().iter().eq([Some(value); 2]));
    }
    assert_eq!(bad["token_ids"].null_count(), 2);
}
