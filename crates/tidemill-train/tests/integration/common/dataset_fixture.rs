use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, FixedSizeBinaryArray, FixedSizeListArray, LargeBinaryArray, RecordBatch, StringArray,
    UInt64Array,
};
use arrow::datatypes::{DataType, Field, Schema, UInt32Type};
use half::f16;
use tempfile::TempDir;
use tidemill_store::{Bucket, DatasetSpec, DatasetWriter, Digests, ModelDigests, TensorSpec, UnitKey};
use tidemill_train::{Draw, Purpose};

/// The number of rows in a dataset by default.
pub const ROWS: u64 = 50;

/// The shape [L, D] of text embeddings.
pub const TEXT: [u32; 2] = [5, 6];

/// A bucket of images of 96 x 64 pixels.
const WIDE: Bucket = Bucket { resolution: 64, width: 96, height: 64 };

/// A dataset at two resolutions, 64 and 128, with latents of 4 x 4 and 6 x 6 cells. Sample ids are
/// row numbers.
pub struct DatasetFixture {
    /// The number of rows.
    pub count: u64,
    /// The value that all latents of a row have; none for random latents.
    pub constant_latents: fn(u64) -> Option<f32>,
    /// The share of rows in the validation split.
    pub validation_share: f64,
    /// Whether every third image at 64 pixels is 96 pixels wide.
    pub has_wide_images: bool,
}

impl Default for DatasetFixture {
    fn default() -> Self {
        Self { count: ROWS, constant_latents: |_| None, validation_share: 0.0, has_wide_images: false }
    }
}

impl DatasetFixture {
    /// Writes the dataset to a new folder.
    pub fn write_to_temp_dir(&self) -> TempDir {
        let folder = temp_dir();
        self.write(folder.path());
        folder
    }

    /// Writes a new snapshot of the dataset in `folder`.
    pub fn write(&self, folder: &Path) {
        write_dataset(folder, self);
    }

    fn is_wide(&self, row: u64, resolution: u32) -> bool {
        self.has_wide_images && resolution == WIDE.resolution && row.is_multiple_of(3)
    }
}

/// A new folder, which is removed when it is dropped.
pub fn temp_dir() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// A new folder with the default dataset.
pub fn temp_dataset() -> TempDir {
    DatasetFixture::default().write_to_temp_dir()
}

fn write_dataset(folder: &Path, rows: &DatasetFixture) {
    let square = |resolution, cells| (Bucket::square(resolution), TensorSpec::f16([4, cells, cells]));
    let mut latents = BTreeMap::from([square(64, 4), square(128, 6)]);
    if rows.has_wide_images {
        latents.insert(WIDE, TensorSpec::f16([4, 4, 6]));
    }
    let spec = DatasetSpec {
        format: tidemill_store::dataset::spec::FORMAT_VERSION,
        latents,
        latents_kind: "moments".into(),
        text: TensorSpec::f16(TEXT),
        more_text: BTreeMap::new(),
        has_time_ids: false,
        models: ModelDigests {
            vae: "v".into(),
            text_encoder: Some("t".into()),
            tokenizer: "k".into(),
            more_text_encoders: Vec::new(),
        },
        scaling_factor: 0.5,
        shift_factor: 0.0,
        validation_share: rows.validation_share,
        row_group_rows: 8,
        prepare: serde_json::json!({}),
        rows: serde_json::Value::Null,
    };
    let empty_caption = random_f16(u64::MAX, spec.text.bytes());
    let writer = DatasetWriter::open(folder.to_str().unwrap(), spec.clone(), &empty_caption).unwrap();
    let digests = Digests::default();
    let identity = format!("{} {}", rows.count, rows.validation_share);
    let unit = UnitKey { file: "f".into(), identity, span: 0..rows.count, digests };
    let mut attempt = writer.begin_unit(&unit);
    attempt.write(&record_batch(&spec, rows)).unwrap();
    attempt.commit().unwrap();
    writer.snapshot(&[unit.id()]).unwrap();
}

fn record_batch(spec: &DatasetSpec, rows: &DatasetFixture) -> RecordBatch {
    let ids = || 0..rows.count;
    let mut fields = vec![
        Field::new("sample_id", DataType::UInt64, false),
        Field::new("status", DataType::Utf8, false),
        Field::new("reason", DataType::Utf8, true),
    ];
    let mut columns: Vec<ArrayRef> = vec![
        Arc::new(UInt64Array::from_iter_values(ids())),
        Arc::new(ids().map(|_| Some("kept")).collect::<StringArray>()),
        Arc::new(ids().map(|_| None::<&str>).collect::<StringArray>()),
    ];
    let mut add = |name: String, column: ArrayRef| {
        fields.push(Field::new(name, column.data_type().clone(), true));
        columns.push(column);
    };
    for resolution in [64, 128] {
        let bucket = |row| if rows.is_wide(row, resolution) { WIDE } else { Bucket::square(resolution) };
        let layout = |row| &spec.latents[&bucket(row)];
        let latents = ids().map(|row| match (rows.constant_latents)(row) {
            Some(value) => Some(f16::from_f32(value).to_le_bytes().repeat(layout(row).elements())),
            None => Some(random_f16(row, layout(row).bytes())),
        });
        let sizes = ids().map(bucket).map(|bucket| Some([Some(bucket.width), Some(bucket.height)]));
        let sizes = FixedSizeListArray::from_iter_primitive::<UInt32Type, _, _>(sizes, 2);
        add(format!("latents_{resolution}"), Arc::new(latents.collect::<LargeBinaryArray>()));
        add(format!("size_{resolution}"), Arc::new(sizes));
    }
    let width = spec.text.bytes();
    let text = ids().map(|row| Some(random_f16(row, width)));
    let text = FixedSizeBinaryArray::try_from_sparse_iter_with_size(text, width as i32).unwrap();
    add("text".into(), Arc::new(text));
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
}

/// Normally distributed f16 values of a row, as they are stored.
pub fn random_f16(row: u64, bytes: usize) -> Vec<u8> {
    let mut values = vec![0f32; bytes / 2];
    Draw::new(1, 0, row, Purpose::InitialNoise).fill_normal(&mut values);
    values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect()
}
