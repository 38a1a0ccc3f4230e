//! What `synth` writes: the rows asked for, broken exactly as reported, the same bytes for the same seed.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Float64Type, Int64Type};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use tidemill_synth::{Broken, Combinations, HELD_OUT, SynthConfig, SynthReport, synth};
use turbojpeg::PixelFormat;

fn batches(report: &SynthReport) -> Vec<RecordBatch> {
    let read =
        |path| ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap().build().unwrap();
    report.files.iter().flat_map(read).map(|batch| batch.unwrap()).collect()
}

fn small(seed: u64) -> SynthConfig {
    SynthConfig { rows: 1003, files: 3, row_group_rows: 100, seed, broken: 0.05, ..Default::default() }
}

/// How a row is broken, judged by its content alone.
fn diagnose(batch: &RecordBatch, row: usize) -> Option<Broken> {
    let jpg = batch["jpg"].as_binary::<i32>();
    if jpg.is_null(row) {
        return Some(Broken::NullImage);
    }
    let bytes = jpg.value(row);
    let score = batch["score"].as_primitive::<Float64Type>().value(row);
    match bytes {
        [] => Some(Broken::EmptyImage),
        [0, 0, ..] => Some(Broken::ZeroBytes),
        [b'X', b'X', ..] => Some(Broken::WrongMagic),
        _ if !bytes.ends_with(&[0xff, 0xd9]) => Some(Broken::TruncatedJpeg),
        _ if batch["caption"].is_null(row) => Some(Broken::NullCaption),
        _ if score.is_nan() => Some(Broken::NanScore),
        _ => None,
    }
}

#[test]
fn rows_and_broken_rows_are_those_reported() {
    let dir = tempfile::tempdir().unwrap();
    let report = synth(&small(5), dir.path()).unwrap();
    let mut found: BTreeMap<Broken, usize> = Broken::ALL.iter().map(|&way| (way, 0)).collect();
    let mut rows = 0;
    for batch in batches(&report) {
        rows += batch.num_rows();
        for row in 0..batch.num_rows() {
            if let Some(way) = diagnose(&batch, row) {
                *found.get_mut(&way).unwrap() += 1;
            }
        }
    }
    assert_eq!((rows, report.rows), (1003, 1003));
    assert_eq!(found, report.broken);
    assert_eq!(found.values().sum::<usize>(), 50);
    assert!(found.values().all(|&n| n >= 7));
    let unreadable = found.iter().filter(|(way, _)| way.unreadable_image()).map(|(_, n)| n);
    assert_eq!(report.unreadable_images(), unreadable.sum::<usize>());
    let kept: SynthReport =
        serde_json::from_reader(File::open(dir.path().join("synth.json")).unwrap()).unwrap();
    assert_eq!(kept, report);
}

#[test]
fn readable_images_have_the_sides_the_row_says() {
    let dir = tempfile::tempdir().unwrap();
    let report = synth(&small(6), dir.path()).unwrap();
    let mut not_square = 0;
    for batch in batches(&report) {
        let sides = |name: &str, row| batch[name].as_primitive::<Int64Type>().value(row) as usize;
        for row in 0..batch.num_rows() {
            let broken = diagnose(&batch, row);
            let jpg = batch["jpg"].as_binary::<i32>();
            let image = turbojpeg::decompress(jpg.value(row), PixelFormat::RGB);
            if broken.is_some_and(Broken::unreadable_image) {
                assert!(image.is_err(), "{broken:?} can be decoded");
                continue;
            }
            let image = image.unwrap();
            assert_eq!((image.width, image.height), (sides("width", row), sides("height", row)));
            assert!((64..=160).contains(&image.width) && (64..=160).contains(&image.height));
            not_square += usize::from(image.width != image.height);
        }
    }
    assert!(not_square > 800);
}

#[test]
fn held_out_pairs_are_drawn_only_when_asked_for() {
    for combinations in [Combinations::Trained, Combinations::HeldOut] {
        let dir = tempfile::tempdir().unwrap();
        let report = synth(&SynthConfig { combinations, ..small(7) }, dir.path()).unwrap();
        for batch in batches(&report) {
            let (colours, shapes) = (batch["colour"].as_string::<i32>(), batch["shape"].as_string::<i32>());
            for pair in colours.iter().flatten().zip(shapes.iter().flatten()) {
                let held_out = HELD_OUT.iter().any(|(c, s)| (c.word(), s.word()) == pair);
                assert_eq!(held_out, combinations == Combinations::HeldOut, "{pair:?}");
            }
        }
    }
}

fn bytes(config: &SynthConfig, dir: &Path) -> Vec<Vec<u8>> {
    synth(config, dir).unwrap().files.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

#[test]
fn the_seed_decides_every_byte() {
    let dirs: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let first = bytes(&small(8), dirs[0].path());
    assert_eq!(first, bytes(&small(8), dirs[1].path()));
    assert_ne!(first, bytes(&small(9), dirs[2].path()));
}

#[test]
fn files_of_a_larger_world_do_not_stay() {
    let dir = tempfile::tempdir().unwrap();
    synth(&small(8), dir.path()).unwrap();
    for other in ["scenes-1.parquet", "scenes-00002.parquet.bak", "other.parquet"] {
        std::fs::write(dir.path().join(other), "kept").unwrap();
    }
    synth(&SynthConfig { files: 1, ..small(8) }, dir.path()).unwrap();
    let names = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    let expected = [
        "other.parquet",
        "scenes-00000.parquet",
        "scenes-00002.parquet.bak",
        "scenes-1.parquet",
        "synth.json",
    ];
    assert_eq!(names, expected);
}

#[test]
fn settings_that_cannot_be_met_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let refused = [
        ("synth.rows", SynthConfig { rows: 0, ..Default::default() }),
        ("synth.files", SynthConfig { files: 0, ..Default::default() }),
        ("synth.row_group_rows", SynthConfig { row_group_rows: 0, ..Default::default() }),
        ("synth.min_side", SynthConfig { min_side: 3, ..Default::default() }),
        ("synth.max_side", SynthConfig { max_side: 20, ..Default::default() }),
        ("synth.broken", SynthConfig { broken: f64::NAN, ..Default::default() }),
    ];
    for (name, config) in refused {
        let message = synth(&config, dir.path()).unwrap_err().to_string();
        assert!(message.starts_with(name), "{message}");
    }
}
