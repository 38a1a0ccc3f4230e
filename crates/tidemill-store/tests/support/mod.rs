//! What the tests share: a seed that is printed, and a little world of encoded rows whose every value follows
//! from the sample id, so that any reader can tell whether it got the right bytes.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use arrow::array::{ArrayRef, FixedSizeBinaryArray, Float32Array, RecordBatch, StringArray, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema};
use tidemill_store::{
    Dataset, DatasetSpec, Manifest, ModelDigests, Outcome, TensorSpec, UnitId, UnitKey, Writer,
};
use xxhash_rust::xxh3::xxh3_64_with_seed;

pub const RESOLUTIONS: [u32; 2] = [64, 128];

/// The seed of this run: `TIDEMILL_SEED`, or the time.
pub fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| {
        let given =
            std::env::var("TIDEMILL_SEED").ok().map(|text| text.parse().expect("TIDEMILL_SEED is a number"));
        let seed = given.unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs());
        println!("seed {seed} (TIDEMILL_SEED={seed} repeats this run)");
        seed
    })
}

pub fn hash(a: u64, b: u64) -> u64 {
    xxh3_64_with_seed(&a.to_le_bytes(), b)
}

pub fn spec(row_group_rows: u32, validation_share: f64) -> DatasetSpec {
    DatasetSpec {
        format: tidemill_store::spec::FORMAT,
        latents: RESOLUTIONS.iter().map(|r| (*r, TensorSpec::f16([8, r / 32, r / 32]))).collect(),
        latents_kind: "moments".into(),
        text: TensorSpec::f16([7, 5]),
        models: ModelDigests { vae: "v".into(), text_encoder: "t".into(), tokenizer: "k".into() },
        scaling_factor: 0.18215,
        validation_share,
        row_group_rows,
        prepare: serde_json::json!({"crop": "center"}),
    }
}

pub fn writer(folder: &Path, spec: DatasetSpec) -> Writer {
    let empty = tensor(0, "text", spec.text.bytes());
    Writer::open(folder.to_str().unwrap(), spec, &empty).unwrap()
}

/// Finite f16 values that follow from the sample and the column.
pub fn tensor(sample_id: u64, column: &str, bytes: usize) -> Vec<u8> {
    let start = xxh3_64_with_seed(column.as_bytes(), sample_id);
    (0..bytes as u64 / 2).flat_map(|i| ((hash(start, i) & 0xbbff) as u16).to_le_bytes()).collect()
}

/// What becomes of a row: its status, its reason, and the resolutions it can be used at.
pub fn fate(sample_id: u64) -> (&'static str, Option<&'static str>, Vec<u32>) {
    match hash(sample_id, 1) % 100 {
        0..7 => ("rejected", Some("min_side"), vec![]),
        7..10 => ("rejected", Some("caption_length"), vec![]),
        10..15 => ("quarantined", Some("damaged: the file ends early"), vec![]),
        15..40 => ("kept", None, vec![64]),
        40..45 => ("kept", None, vec![128]),
        _ => ("kept", None, vec![64, 128]),
    }
}

/// Ids of the rows of unit `i`.
pub fn sample_ids(unit: u64, rows: u64) -> Vec<u64> {
    (0..rows).map(|row| hash(row, hash(unit, 99))).collect()
}

pub fn unit_key(unit: u64, rows: u64) -> UnitKey {
    UnitKey {
        file: "in.parquet".into(),
        identity: "x".into(),
        span: unit * 10_000..unit * 10_000 + rows,
        digest: "d".into(),
    }
}

/// The encoded rows of some samples.
pub fn batch(ids: &[u64], spec: &DatasetSpec) -> RecordBatch {
    let texts = |text: &dyn Fn(u64) -> Option<String>| -> ArrayRef {
        Arc::new(ids.iter().map(|id| text(*id)).collect::<StringArray>())
    };
    let mut fields = vec![
        Field::new("sample_id", DataType::UInt64, false),
        Field::new("key", DataType::Utf8, false),
        Field::new("caption", DataType::Utf8, true),
        Field::new("score", DataType::Float32, false),
        Field::new("status", DataType::Utf8, false),
        Field::new("reason", DataType::Utf8, true),
    ];
    let mut columns: Vec<ArrayRef> = vec![
        Arc::new(UInt64Array::from(ids.to_vec())),
        texts(&|id| Some(format!("key {id}"))),
        texts(&|id| (id % 10 != 0).then(|| format!("caption “{id}”"))),
        Arc::new(Float32Array::from_iter_values(ids.iter().map(|id| (id % 100) as f32))),
        texts(&|id| Some(fate(id).0.into())),
        texts(&|id| fate(id).1.map(str::to_owned)),
    ];
    let latents = spec.latents.iter().map(|(r, tensor)| (format!("latents_{r}"), Some(*r), tensor));
    for (name, resolution, form) in latents.chain([("text".into(), None, &spec.text)]) {
        let there = |id: u64| resolution.map_or(fate(id).0 == "kept", |r| fate(id).2.contains(&r));
        let values = ids.iter().map(|id| there(*id).then(|| tensor(*id, &name, form.bytes())));
        let width = form.bytes() as i32;
        let array = FixedSizeBinaryArray::try_from_sparse_iter_with_size(values, width).unwrap();
        let shape = serde_json::to_string(&form.shape).unwrap();
        let metadata = [("dtype".to_owned(), "f16".to_owned()), ("shape".to_owned(), shape)];
        fields.push(Field::new(name, DataType::FixedSizeBinary(width), true).with_metadata(metadata.into()));
        columns.push(Arc::new(array));
    }
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
}

/// Writes a unit in batches of `batch_rows`.
pub fn write_unit(writer: &Writer, unit: u64, rows: u64, batch_rows: usize) -> Outcome {
    let mut attempt = writer.begin(&unit_key(unit, rows));
    for ids in sample_ids(unit, rows).chunks(batch_rows) {
        attempt.write(&batch(ids, writer.spec())).unwrap();
    }
    attempt.commit().unwrap()
}

/// The units' names.
pub fn plan(units: &[u64]) -> Vec<UnitId> {
    units.iter().zip(0..).map(|(rows, unit)| unit_key(unit, *rows).id()).collect()
}

/// Writes a dataset of units with so many rows each, in odd batches, and makes a snapshot.
pub fn write_dataset(folder: &Path, spec: DatasetSpec, units: &[u64]) -> (Writer, Manifest) {
    let writer = writer(folder, spec);
    for (rows, unit) in units.iter().zip(0..) {
        write_unit(&writer, unit, *rows, 1 + (hash(unit, 5) % 60) as usize);
    }
    let manifest = writer.snapshot(&plan(units)).unwrap();
    (writer, manifest)
}

pub fn open(folder: &Path) -> Dataset {
    Dataset::open(folder.to_str().unwrap()).unwrap()
}

/// Checks the bytes of rows against what the sample ids say.
pub fn check_tensors(spec: &DatasetSpec, resolution: u32, ids: &[u64], latents: &[u8], text: &[u8]) {
    let form = &spec.latents[&resolution];
    assert_eq!((latents.len(), text.len()), (ids.len() * form.bytes(), ids.len() * spec.text.bytes()));
    for (i, id) in ids.iter().enumerate() {
        let part = |bytes: &[u8], n: usize| bytes[i * n..(i + 1) * n].to_vec();
        assert_eq!(part(latents, form.bytes()), tensor(*id, &format!("latents_{resolution}"), form.bytes()));
        assert_eq!(part(text, spec.text.bytes()), tensor(*id, "text", spec.text.bytes()));
    }
}

/// How often each item occurs.
pub fn tally<T: Ord>(items: impl IntoIterator<Item = T>) -> BTreeMap<T, usize> {
    let mut counts = BTreeMap::new();
    items.into_iter().for_each(|item| *counts.entry(item).or_default() += 1);
    counts
}
