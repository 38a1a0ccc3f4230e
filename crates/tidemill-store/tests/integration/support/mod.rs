//! Shared helpers: encoded rows whose values all follow from the sample id, so that a test can
//! check any bytes it reads; and Python scripts of libraries that read or write the same formats.

pub mod remote;
pub mod streams;

use std::collections::{BTreeMap, HashMap};
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, FixedSizeBinaryArray, FixedSizeListArray, Float32Array, LargeBinaryArray, RecordBatch,
    StringArray, UInt32Array, UInt64Array,
};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, Schema};
use tidemill_store::stream::Batch;
use tidemill_store::{
    Bucket, CommitOutcome, Dataset, DatasetSpec, DatasetWriter, Digests, Manifest, ModelDigests, TensorSpec,
    Tensors, TextColumn, UnitId, UnitKey,
};
use twox_hash::XxHash3_64;

pub const RESOLUTIONS: [u32; 2] = [64, 128];

/// Runs `tests/python/<script>`.
pub fn python(script: &str, arguments: &[&str]) {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python");
    tidemill_testing::python(&scripts.join(script), arguments);
}

pub fn hash(a: u64, b: u64) -> u64 {
    XxHash3_64::oneshot_with_seed(b, &a.to_le_bytes())
}

pub fn spec(row_group_rows: u32, validation_share: f64) -> DatasetSpec {
    DatasetSpec {
        format: tidemill_store::dataset::spec::FORMAT_VERSION,
        latents: RESOLUTIONS.iter().map(|r| (Bucket::square(*r), form(Bucket::square(*r)))).collect(),
        latents_kind: "moments".into(),
        text: TensorSpec::f16([7, 5]),
        more_text: BTreeMap::new(),
        has_time_ids: false,
        models: ModelDigests {
            vae: "v".into(),
            text_encoder: Some("t".into()),
            tokenizer: "k".into(),
            more_text_encoders: Vec::new(),
        },
        scaling_factor: 0.18215,
        shift_factor: 0.0,
        validation_share,
        row_group_rows,
        prepare: serde_json::json!({"crop": "center"}),
        rows: serde_json::Value::Null,
    }
}

/// The stored form of a bucket's latents.
fn form(bucket: Bucket) -> TensorSpec {
    TensorSpec::f16([8, bucket.height / 32, bucket.width / 32])
}

/// Adds a second text encoder with pooled outputs, and sizes of image and crop.
pub fn conditioned(spec: DatasetSpec) -> DatasetSpec {
    let hidden = TensorSpec { dtype: spec.text.dtype, shape: vec![7, 3] };
    let more_text = [(TextColumn::hidden(2), hidden), (TextColumn::pooled(2), TensorSpec::f16([9]))];
    DatasetSpec { more_text: more_text.into(), has_time_ids: true, ..spec }
}

/// Adds several buckets at resolution 64, and the columns of [`conditioned`]. Some buckets have latents of the
/// same size in bytes.
pub fn bucketed(spec: DatasetSpec) -> DatasetSpec {
    let mut spec = conditioned(spec);
    for (width, height) in [(128, 32), (32, 128), (64, 32), (96, 32)] {
        let bucket = Bucket { resolution: 64, width, height };
        spec.latents.insert(bucket, form(bucket));
    }
    spec
}

/// The bucket of a sample's image at a resolution, or `None` if it cannot be used there.
pub fn bucket(spec: &DatasetSpec, sample_id: u64, resolution: u32) -> Option<Bucket> {
    let buckets: Vec<Bucket> = spec.latents.keys().copied().filter(|b| b.resolution == resolution).collect();
    let drawn = buckets.get((hash(sample_id, 3) % buckets.len().max(1) as u64) as usize).copied();
    drawn.filter(|_| row_outcome(sample_id).2.contains(&resolution))
}

pub fn writer(folder: &Path, spec: DatasetSpec) -> DatasetWriter {
    let empty = empty_caption(&spec);
    DatasetWriter::open(folder.to_str().unwrap(), spec, &empty).unwrap()
}

/// The row of all text columns for the empty caption.
pub fn empty_caption(spec: &DatasetSpec) -> Vec<u8> {
    let column =
        |(column, form): (TextColumn, &TensorSpec)| tensor(0, &column.to_string(), form.decoded().bytes());
    spec.text_columns().flat_map(column).collect()
}

/// Finite f16 values that follow from the sample and the column.
pub fn tensor(sample_id: u64, column: &str, bytes: usize) -> Vec<u8> {
    let start = XxHash3_64::oneshot_with_seed(sample_id, column.as_bytes());
    (0..bytes as u64 / 2).flat_map(|i| ((hash(start, i) & 0xbbff) as u16).to_le_bytes()).collect()
}

/// What becomes of a row: its status, its reason, and the resolutions it can be used at.
pub fn row_outcome(sample_id: u64) -> (&'static str, Option<&'static str>, Vec<u32>) {
    match hash(sample_id, 1) % 100 {
        0..7 => ("rejected", Some("min_side"), vec![]),
        7..10 => ("rejected", Some("caption_length"), vec![]),
        10..15 => ("quarantined", Some("damaged: the file ends early"), vec![]),
        15..40 => ("kept", None, vec![64]),
        40..45 => ("kept", None, vec![128]),
        _ => ("kept", None, vec![64, 128]),
    }
}

/// Sample ids of the rows of a unit.
pub fn sample_ids(unit: u64, rows: u64) -> Vec<u64> {
    (0..rows).map(|row| hash(row, hash(unit, 99))).collect()
}

/// Digests of the settings that [`batch`] stands for.
pub fn digests() -> Digests {
    let tensors = ["latents_64", "latents_128", "text"].map(|name| (name.into(), "t".into()));
    Digests { rows: "d".into(), tensors: tensors.into() }
}

pub fn unit_key(unit: u64, rows: u64) -> UnitKey {
    UnitKey {
        file: "in.parquet".into(),
        identity: "x".into(),
        span: unit * 10_000..unit * 10_000 + rows,
        digests: digests(),
    }
}

/// The encoded rows of samples.
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
        texts(&|id| Some(row_outcome(id).0.into())),
        texts(&|id| row_outcome(id).1.map(str::to_owned)),
    ];
    for resolution in spec.resolutions() {
        let buckets: Vec<Option<Bucket>> = ids.iter().map(|id| bucket(spec, *id, resolution)).collect();
        let values = ids.iter().zip(&buckets).map(|(id, bucket)| bucket.map(|b| latents(spec, *id, b)));
        let values = values.collect::<LargeBinaryArray>();
        let shapes: Vec<_> =
            spec.latents.iter().filter(|(b, _)| b.resolution == resolution).map(|(_, f)| f).collect();
        let metadata = metadata(if let [only] = shapes[..] { Some(only) } else { None });
        let name = format!("latents_{resolution}");
        fields.push(Field::new(name, DataType::LargeBinary, true).with_metadata(metadata));
        columns.push(Arc::new(values));
        let sizes = sizes(&buckets);
        fields.push(Field::new(format!("size_{resolution}"), sizes.data_type().clone(), true));
        columns.push(Arc::new(sizes));
        if spec.has_time_ids {
            let (field, column) = tensors(ids, &format!("time_ids_{resolution}"), &TensorSpec::time_ids());
            fields.push(field);
            columns.push(column);
        }
    }
    for (column, form) in spec.text_columns() {
        let (field, column) = tensors(ids, &column.to_string(), &form.decoded());
        fields.push(field);
        columns.push(column);
    }
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
}

/// A column of tensors of the kept rows, which all have the same form.
fn tensors(ids: &[u64], name: &str, form: &TensorSpec) -> (Field, ArrayRef) {
    let bytes = form.bytes();
    let values = ids.iter().map(|id| (row_outcome(*id).0 == "kept").then(|| tensor(*id, name, bytes)));
    let column = FixedSizeBinaryArray::try_from_sparse_iter_with_size(values, bytes as i32).unwrap();
    let field = Field::new(name, DataType::FixedSizeBinary(bytes as i32), true);
    (field.with_metadata(form.metadata()), Arc::new(column))
}

/// The latents of a sample's image in a bucket.
fn latents(spec: &DatasetSpec, sample_id: u64, bucket: Bucket) -> Vec<u8> {
    tensor(sample_id, &format!("latents_{bucket}"), spec.latents[&bucket].bytes())
}

fn metadata(form: Option<&TensorSpec>) -> HashMap<String, String> {
    let shape = form.map(|form| ("shape".to_owned(), serde_json::to_string(&form.shape).unwrap()));
    [("dtype".to_owned(), "f16".to_owned())].into_iter().chain(shape).collect()
}

fn sizes(buckets: &[Option<Bucket>]) -> FixedSizeListArray {
    let sizes = buckets.iter().flat_map(|bucket| bucket.map_or([0; 2], |b| [b.width, b.height]));
    let nulls = NullBuffer::from_iter(buckets.iter().map(Option::is_some));
    let item = Arc::new(Field::new_list_field(DataType::UInt32, true));
    FixedSizeListArray::new(item, 2, Arc::new(UInt32Array::from_iter_values(sizes)), Some(nulls))
}

/// Writes a unit in batches of `batch_rows`.
pub fn write_unit(writer: &DatasetWriter, unit: u64, rows: u64, batch_rows: usize) -> CommitOutcome {
    let mut attempt = writer.begin_unit(&unit_key(unit, rows));
    for ids in sample_ids(unit, rows).chunks(batch_rows) {
        attempt.write(&batch(ids, writer.spec())).unwrap();
    }
    attempt.commit().unwrap()
}

/// Ids of units with these numbers of rows.
pub fn plan(units: &[u64]) -> Vec<UnitId> {
    units.iter().zip(0..).map(|(rows, unit)| unit_key(unit, *rows).id()).collect()
}

/// Writes a dataset of units with these numbers of rows in batches of odd sizes, and makes a
/// snapshot.
pub fn write_dataset(folder: &Path, spec: DatasetSpec, units: &[u64]) -> (DatasetWriter, Manifest) {
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

/// Checks the bytes of rows against their sample ids: latents, all text columns, and sizes of image and crop.
pub fn check_tensors(
    spec: &DatasetSpec,
    bucket: Bucket,
    ids: &[u64],
    found: &[u8],
    text: &[impl Deref<Target = [u8]>],
    time_ids: Option<&[u8]>,
) {
    let expected: Vec<u8> = ids.iter().flat_map(|id| latents(spec, *id, bucket)).collect();
    assert!(found == expected, "latents of {bucket}");
    let check = |name: &str, form: &TensorSpec, found: &[u8]| {
        let expected: Vec<u8> = ids.iter().flat_map(|id| tensor(*id, name, form.bytes())).collect();
        assert!(found == expected, "{name}");
    };
    assert_eq!(text.len(), spec.text_columns().count());
    for ((column, form), found) in spec.text_columns().zip(text) {
        check(&column.to_string(), form, found);
    }
    assert_eq!(time_ids.is_some(), spec.has_time_ids);
    if let Some(found) = time_ids {
        check(&format!("time_ids_{}", bucket.resolution), &TensorSpec::time_ids(), found);
    }
}

/// [`check_tensors`] of the first rows of a split and bucket.
pub fn check_first_rows(spec: &DatasetSpec, bucket: Bucket, rows: &Tensors) {
    let time_ids = spec.has_time_ids.then_some(&rows.time_ids[..]);
    check_tensors(spec, bucket, &rows.sample_ids, &rows.latents, &rows.text, time_ids);
}

/// [`check_tensors`] of a batch.
pub fn check_batch(spec: &DatasetSpec, batch: &Batch) {
    let time_ids = batch.time_ids.as_deref();
    check_tensors(spec, batch.bucket, &batch.sample_ids, &batch.latents, &batch.text, time_ids);
}

/// Counts how often each item occurs.
pub fn count_items<T: Ord>(items: impl IntoIterator<Item = T>) -> BTreeMap<T, usize> {
    let mut counts = BTreeMap::new();
    items.into_iter().for_each(|item| *counts.entry(item).or_default() += 1);
    counts
}

/// The key of a unit under other row settings, and with another text digest if `new_text`.
pub fn unit_key_with_new_settings(unit: u64, rows: u64, new_text: bool) -> UnitKey {
    let mut key = unit_key(unit, rows);
    key.digests.rows = "e".into();
    if new_text {
        key.digests.tensors.insert("text".into(), "u".into());
    }
    key
}
