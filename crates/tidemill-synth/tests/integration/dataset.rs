//! The dataset has the requested rows, exactly the reported defects, and the same bytes for the
//! same seed.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Float64Type, Int64Type};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use tidemill_synth::{Combinations, Defect, HELD_OUT, SynthConfig, SynthReport, write_scenes};
use turbojpeg::PixelFormat;

/// Reads all files of a dataset.
fn read_batches(report: &SynthReport) -> Vec<RecordBatch> {
    let read =
        |path| ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap().build().unwrap();
    report.files.iter().flat_map(read).map(|batch| batch.unwrap()).collect()
}

/// Settings of a small dataset in three files with 50 broken rows.
fn small_config(seed: u64) -> SynthConfig {
    SynthConfig { rows: 1003, files: 3, row_group_rows: 100, seed, broken: 0.05, ..Default::default() }
}

/// The defect of a row, judged by its content alone.
fn find_defect(batch: &RecordBatch, row: usize) -> Option<Defect> {
    let jpg = batch["jpg"].as_binary::<i32>();
    if jpg.is_null(row) {
        return Some(Defect::NullImage);
    }
    let bytes = jpg.value(row);
    let score = batch["score"].as_primitive::<Float64Type>().value(row);
    match bytes {
        [] => Some(Defect::EmptyImage),
        [0, 0, ..] => Some(Defect::ZeroBytes),
        [b'X', b'X', ..] => Some(Defect::WrongMagic),
        _ if !bytes.ends_with(&[0xff, 0xd9]) => Some(Defect::TruncatedJpeg),
        _ if batch["caption"].is_null(row) => Some(Defect::NullCaption),
        _ if score.is_nan() => Some(Defect::NanScore),
        _ => None,
    }
}

#[test]
fn rows_and_defects_match_the_report() {
    let dir = tempfile::tempdir().unwrap();
    let report = write_scenes(&small_config(5), dir.path()).unwrap();
    let mut found: BTreeMap<Defect, usize> = Defect::ALL.iter().map(|&defect| (defect, 0)).collect();
    let mut rows = 0;
    for batch in read_batches(&report) {
        rows += batch.num_rows();
        for row in 0..batch.num_rows() {
            if let Some(defect) = find_defect(&batch, row) {
                *found.get_mut(&defect).unwrap() += 1;
            }
        }
    }
    assert_eq!((rows, report.rows), (1003, 1003));
    assert_eq!(found, report.broken);
    assert_eq!(found.values().sum::<usize>(), 50);
    assert!(found.values().all(|&n| n >= 7));
    let unreadable = found.iter().filter(|(defect, _)| defect.has_unreadable_image()).map(|(_, n)| n);
    assert_eq!(report.count_unreadable_images(), unreadable.sum::<usize>());
    let written: SynthReport =
        serde_json::from_reader(File::open(dir.path().join("synth.json")).unwrap()).unwrap();
    assert_eq!(written, report);
}

#[test]
fn readable_images_have_the_size_in_their_row() {
    let dir = tempfile::tempdir().unwrap();
    let report = write_scenes(&small_config(6), dir.path()).unwrap();
    let mut not_square = 0;
    for batch in read_batches(&report) {
        let sides = |name: &str, row| batch[name].as_primitive::<Int64Type>().value(row) as usize;
        for row in 0..batch.num_rows() {
            let defect = find_defect(&batch, row);
            let jpg = batch["jpg"].as_binary::<i32>();
            let image = turbojpeg::decompress(jpg.value(row), PixelFormat::RGB);
            if defect.is_some_and(Defect::has_unreadable_image) {
                assert!(image.is_err(), "{defect:?} can be decoded");
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
fn held_out_pairs_are_drawn_only_on_request() {
    for combinations in [Combinations::Trained, Combinations::HeldOut] {
        let dir = tempfile::tempdir().unwrap();
        let report = write_scenes(&SynthConfig { combinations, ..small_config(7) }, dir.path()).unwrap();
        for batch in read_batches(&report) {
            let (colours, shapes) = (batch["colour"].as_string::<i32>(), batch["shape"].as_string::<i32>());
            for pair in colours.iter().flatten().zip(shapes.iter().flatten()) {
                let held_out = HELD_OUT.iter().any(|(c, s)| (c.word(), s.word()) == pair);
                assert_eq!(held_out, combinations == Combinations::HeldOut, "{pair:?}");
            }
        }
    }
}

/// Writes a dataset and reads its files.
fn write_and_read_files(config: &SynthConfig, dir: &Path) -> Vec<Vec<u8>> {
    write_scenes(config, dir).unwrap().files.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

#[test]
fn equal_seeds_give_equal_bytes() {
    let dirs: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let first = write_and_read_files(&small_config(8), dirs[0].path());
    assert_eq!(first, write_and_read_files(&small_config(8), dirs[1].path()));
    assert_ne!(first, write_and_read_files(&small_config(9), dirs[2].path()));
}

#[test]
fn surplus_files_of_a_larger_dataset_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    write_scenes(&small_config(8), dir.path()).unwrap();
    for other in ["scenes-1.parquet", "scenes-00002.parquet.bak", "other.parquet"] {
        std::fs::write(dir.path().join(other), "kept").unwrap();
    }
    write_scenes(&SynthConfig { files: 1, ..small_config(8) }, dir.path()).unwrap();
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
fn invalid_settings_are_refused_by_name() {
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
        let message = write_scenes(&config, dir.path()).unwrap_err().to_string();
        assert!(message.starts_with(name), "{message}");
    }
}
