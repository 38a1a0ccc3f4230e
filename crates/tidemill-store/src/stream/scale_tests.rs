//! Opens and resumes streams over a snapshot of a million units, and measures time and memory.

use std::collections::HashMap;
use std::process::Command;
use std::time::Instant;

use tidemill_io::{Checksum, Location};

use crate::bucket::Bucket;
use crate::dataset::column_group::ColumnGroup;
use crate::dataset::commit::{Commit, FileEntry};
use crate::dataset::header::Header;
use crate::dataset::manifest::manifest_key;
use crate::dataset::manifest_file::to_parquet;
use crate::dataset::reader::Dataset;
use crate::dataset::row_counts::RowCounts;
use crate::dataset::spec::{DatasetSpec, FORMAT_VERSION, ModelDigests, TensorSpec};
use crate::dataset::split::Split;
use crate::dataset::unit::{Digests, UnitKey};
use crate::stream::{Phase, ReadOptions, Stream, StreamConfig, single_dataset};

const ROWS: u64 = 10_000_000_000;
const UNITS: u64 = 1_200_000;

fn header(location: &Location) -> Header {
    let spec = DatasetSpec {
        format: FORMAT_VERSION,
        latents: [(Bucket::square(256), TensorSpec::f16([8, 32, 32]))].into(),
        latents_kind: "moments".into(),
        text: TensorSpec::f16([77, 1024]),
        more_text: Default::default(),
        has_time_ids: false,
        models: ModelDigests {
            vae: "v".into(),
            text_encoder: Some("t".into()),
            tokenizer: "k".into(),
            more_text_encoders: Vec::new(),
        },
        scaling_factor: 0.182_15,
        shift_factor: 0.0,
        validation_share: 0.0,
        row_group_rows: 256,
        prepare: serde_json::Value::Null,
        rows: serde_json::Value::Null,
    };
    Header::create(location, spec, &vec![0; 2 * 77 * 1024]).unwrap()
}

/// A unit of about 8,333 rows. Even units have the rows that odd units lack.
fn commit(i: u64) -> Commit {
    let random = |salt: u64| u64::from(Checksum::compute(&[i.to_le_bytes(), salt.to_le_bytes()].concat()));
    let mean = ROWS / UNITS;
    let more = u64::from(Checksum::compute(&(i / 2).to_le_bytes())) % mean;
    let rows = if i == 0 {
        ROWS - mean * (UNITS - 1) + more
    } else if i.is_multiple_of(2) {
        mean + more
    } else {
        mean - more
    };
    let unit = UnitKey {
        file: format!("s3://pairs/{:05}.tar", i / 16),
        identity: format!("{:016x}", random(1)),
        span: i..i + 1,
        digests: Digests { rows: "d".into(), tensors: [("text".into(), "t".into())].into() },
    };
    let (id, attempt) = (unit.id(), format!("{:016x}", random(2)));
    let file = |(group, salt)| FileEntry {
        group,
        path: ColumnGroup::path(group, &id.folder(&attempt)),
        rows,
        bytes: rows * 16_404 + random(salt) % 1000,
        xxh3: random(salt + 1).into(),
        footer_bytes: 20_000,
        footer_xxh3: random(salt + 2).into(),
    };
    let latents = ColumnGroup::Latents(Split::Train, Bucket::square(256));
    let files = [
        (ColumnGroup::Rows, 3),
        (latents, 6),
        (ColumnGroup::Text(Split::Train, crate::TextColumn::FIRST), 9),
    ]
    .map(file)
    .into();
    Commit { id, unit, attempt, counts: RowCounts { read: rows, kept: rows, ..RowCounts::default() }, files }
}

/// Environment variable that names the dataset to the child process.
const CHILD: &str = "TIDEMILL_TEST_SCALE";

/// Opens the dataset and a stream in a child process, and prints the time and the peak memory of
/// the process.
#[test]
#[ignore = "run by ten_billion_rows_open_and_resume_quickly in a process whose memory is its own"]
fn measure_open_and_resume() {
    let uri = std::env::var(CHILD).unwrap();
    let started = Instant::now();
    let datasets = single_dataset(&Dataset::open(&uri).unwrap());
    let opened = started.elapsed();
    let phase = Phase::single_dataset(256, 2048);
    let config =
        || StreamConfig { seed: 1, window: 16, split: Split::Train, bucket: None, phase: phase.clone() };
    let stream = Stream::open(&datasets, config(), ReadOptions::default(), None).unwrap();
    assert_eq!(stream.num_rows(), ROWS);
    let mut state = stream.state();
    state.batches = 3_333_333;
    let started = Instant::now();
    let stream = Stream::open(&datasets, config(), ReadOptions::default(), Some(state)).unwrap();
    let resumed = started.elapsed();
    drop(stream);
    let peak = tidemill_testing::peak_kib(std::process::id()).unwrap();
    println!(
        "\n{{\"open_s\": {}, \"resume_s\": {}, \"peak_kb\": {peak}}}",
        opened.as_secs_f64(),
        resumed.as_secs_f64()
    );
}

/// The time limits are five times the promised figures, because machines may be busy. The figures
/// are printed.
#[test]
#[cfg_attr(debug_assertions, ignore = "times what only an optimised build does quickly")]
fn ten_billion_rows_open_and_resume_quickly() {
    let folder = tempfile::tempdir().unwrap();
    let uri = folder.path().to_str().unwrap();
    let location = Location::open(uri).unwrap();
    let manifest = to_parquet(&header(&location), (0..UNITS).map(commit)).unwrap();
    println!("a manifest of {:.0} MB", manifest.len() as f64 / 1e6);
    location.put(&manifest_key(1), manifest).unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "stream::scale_tests::measure_open_and_resume", "--ignored", "--nocapture"])
        .env(CHILD, uri)
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{output}{}", String::from_utf8_lossy(&child.stderr));
    let line = output.lines().find(|line| line.starts_with('{')).unwrap();
    println!("{line}");
    let found: HashMap<String, f64> = serde_json::from_str(line).unwrap();
    assert!(found["open_s"] < 10.0 && found["resume_s"] < 0.25 && found["peak_kb"] < 256e3, "{line}");
}
