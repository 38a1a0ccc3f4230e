//! Replays the seeds and findings of the fuzzers (`fuzz/corpus`) as regression tests.

use std::io::Cursor;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::support;
use tidemill_data::source::CsvConfig;
use tidemill_data::source::records::coco::coco_records;
use tidemill_data::source::records::csv::CsvRecords;
use tidemill_data::source::records::jsonl::{JsonLines, first_byte};
use tidemill_data::source::records::sample::SampleOptions;
use tidemill_data::source::webdataset::{Samples, ZipMembers};
use tidemill_data::{Format, OneOrMany, SourceConfig};

/// The inputs of a fuzz target with their paths.
fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let entries = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let inputs: Vec<_> = entries.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect();
    assert!(!inputs.is_empty(), "{} is empty", folder.display());
    inputs
}

#[test]
fn tars_of_the_corpus_are_read() {
    for (path, bytes) in corpus("tar") {
        let samples: Vec<_> = Samples::from_tar(bytes.as_slice(), SampleOptions::default()).collect();
        let rows = samples.iter().map(|sample| sample.row);
        assert!(rows.eq(0..samples.len() as u64), "{}", path.display());
    }
}

#[test]
fn json_lines_of_the_corpus_are_read() {
    for (path, bytes) in corpus("jsonl") {
        let read = |span: Range<u64>| -> Vec<_> {
            JsonLines::new(&bytes[first_byte(&span) as usize..], span).collect()
        };
        let size = bytes.len() as u64;
        let halves = [read(0..size / 2), read(size / 2..size)].concat();
        assert_eq!(halves, read(0..size), "{}", path.display());
        assert!(halves.is_sorted_by(|a, b| a.row < b.row), "{}", path.display());
    }
}

#[test]
fn csv_files_of_the_corpus_are_read() {
    for (path, bytes) in corpus("csv") {
        let rows: Vec<_> = CsvRecords::new(bytes.as_slice(), &CsvConfig::default())
            .into_iter()
            .flatten()
            .map(|row| row.row)
            .collect();
        assert!(rows.is_sorted_by(|a, b| a < b), "{}", path.display());
    }
}

#[test]
fn zips_of_the_corpus_are_read() {
    for (path, bytes) in corpus("zip") {
        let options = SampleOptions::default();
        let members = ZipMembers::new(Cursor::new(bytes), &options);
        let samples: Vec<_> = Samples::new(members, options).collect();
        let rows = samples.iter().map(|sample| sample.row);
        assert!(rows.eq(0..samples.len() as u64), "{}", path.display());
    }
}

#[test]
fn coco_files_of_the_corpus_are_read() {
    for (path, bytes) in corpus("coco") {
        let rows = coco_records(bytes.as_slice()).map(|record| record.row);
        assert!(rows.enumerate().all(|(n, row)| row == n as u64), "{}", path.display());
    }
}

#[test]
fn columnar_files_of_the_corpus_are_read() {
    for (target, format) in [("parquet", Format::Parquet), ("arrow", Format::Arrow)] {
        for (path, _) in corpus(target) {
            let uri = OneOrMany::One(path.display().to_string());
            let config = SourceConfig { format, uri, ..SourceConfig::default() };
            let Ok(source) = support::open(&config) else { continue };
            for unit in source.units().unwrap_or_default() {
                let _ = source.read(&unit).map(|batches| batches.take_while(Result::is_ok).count());
            }
        }
    }
}
