//! What the trainer's tests share: a small dataset of random latents, a tiny U-Net, and observers.

use arrow::array::{
    Array, ArrayRef, FixedSizeBinaryArray, FixedSizeListArray, LargeBinaryArray, RecordBatch, StringArray,
    UInt64Array,
};
use arrow::datatypes::{DataType, Field, Schema, UInt32Type};
use half::f16;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tch::{Device, Tensor};
use tidemill_models::{ParamInit, SchedulerConfig, UNet2DConditionModel, UNetConfig};
use tidemill_store::stream::single_dataset;
use tidemill_store::{
    Bucket, Dataset, DatasetSpec, DatasetWriter, Digests, ModelDigests, TensorSpec, UnitKey,
};
use tidemill_train::{
    CheckpointConfig, Draw, EmaConfig, Observer, PhaseConfig, Precision, Purpose, StepMetrics,
    StoredDatasets, TrainConfig, TrainSpec, World,
};

pub const ROWS: u64 = 50;
pub const TEXT: [u32; 2] = [5, 6];
/// Of a [`job`]: 12 at one resolution, then 28 at another.
pub const STEPS: u64 = 40;

/// Writes a dataset of 50 rows at two resolutions: latents of 4 x 4 and 6 x 6 cells.
pub fn dataset(folder: &Path) {
    Rows::default().write(folder);
}

/// The same, in which the latents of some rows have one value everywhere. Sample ids are row numbers.
pub fn spoilt_dataset(folder: &Path, spoilt: fn(u64) -> Option<f32>) {
    Rows { spoilt, ..Rows::default() }.write(folder);
}

/// The same, with a share of the rows held out.
pub fn held_out_dataset(folder: &Path, share: f64) {
    Rows { share, ..Rows::default() }.write(folder);
}

/// A bucket of images of 96 x 64 pixels.
pub const WIDE: Bucket = Bucket { resolution: 64, width: 96, height: 64 };

/// The rows of a dataset.
pub struct Rows {
    /// How many.
    pub count: u64,
    /// Which of them have one value everywhere.
    pub spoilt: fn(u64) -> Option<f32>,
    /// How many of them are held out.
    pub share: f64,
    /// Whether each third is of images of another shape, at 64 pixels.
    pub wide: bool,
}

impl Default for Rows {
    fn default() -> Self {
        Self { count: ROWS, spoilt: |_| None, share: 0.0, wide: false }
    }
}

impl Rows {
    /// As a new snapshot of the dataset in a folder.
    pub fn write(&self, folder: &Path) {
        write_dataset(folder, self);
    }

    fn is_wide(&self, row: u64, resolution: u32) -> bool {
        self.wide && resolution == WIDE.resolution && row.is_multiple_of(3)
    }
}

fn write_dataset(folder: &Path, rows: &Rows) {
    let form = |resolution, cells| (Bucket::square(resolution), TensorSpec::f16([4, cells, cells]));
    let mut latents = BTreeMap::from([form(64, 4), form(128, 6)]);
    if rows.wide {
        latents.insert(WIDE, TensorSpec::f16([4, 4, 6]));
    }
    let validation_share = rows.share;
    let spec = DatasetSpec {
        format: tidemill_store::dataset::spec::FORMAT_VERSION,
        latents,
        latents_kind: "moments".into(),
        text: TensorSpec::f16(TEXT),
        models: ModelDigests { vae: "v".into(), text_encoder: Some("t".into()), tokenizer: "k".into() },
        scaling_factor: 0.5,
        validation_share,
        row_group_rows: 8,
        prepare: serde_json::json!({}),
        rows: serde_json::Value::Null,
    };
    let empty = values(u64::MAX, spec.text.bytes());
    let writer = DatasetWriter::open(folder.to_str().unwrap(), spec.clone(), &empty).unwrap();
    let digests = Digests::default();
    let identity = format!("{} {}", rows.count, rows.share);
    let unit = UnitKey { file: "f".into(), identity, span: 0..rows.count, digests };
    let mut attempt = writer.begin_unit(&unit);
    attempt.write(&batch(&spec, rows)).unwrap();
    attempt.commit().unwrap();
    writer.snapshot(&[unit.id()]).unwrap();
}

fn batch(spec: &DatasetSpec, rows: &Rows) -> RecordBatch {
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
        let form = |row| &spec.latents[&bucket(row)];
        let latents = ids().map(|row| match (rows.spoilt)(row) {
            Some(value) => Some(f16::from_f32(value).to_le_bytes().repeat(form(row).elements())),
            None => Some(values(row, form(row).bytes())),
        });
        let sizes = ids().map(bucket).map(|bucket| Some([Some(bucket.width), Some(bucket.height)]));
        let sizes = FixedSizeListArray::from_iter_primitive::<UInt32Type, _, _>(sizes, 2);
        add(format!("latents_{resolution}"), Arc::new(latents.collect::<LargeBinaryArray>()));
        add(format!("size_{resolution}"), Arc::new(sizes));
    }
    let width = spec.text.bytes();
    let text = ids().map(|row| Some(values(row, width)));
    let text = FixedSizeBinaryArray::try_from_sparse_iter_with_size(text, width as i32).unwrap();
    add("text".into(), Arc::new(text));
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
}

/// The tensor of a row, as it is stored.
pub fn values(row: u64, bytes: usize) -> Vec<u8> {
    let mut numbers = vec![0f32; bytes / 2];
    Draw::new(1, 0, row, Purpose::InitialNoise).fill_normal(&mut numbers);
    numbers.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect()
}

pub fn checkpoints() -> CheckpointConfig {
    CheckpointConfig { every: 10, keep: 3, ..CheckpointConfig::default() }
}

/// A run of 40 steps over two phases, in f32, on the dataset in `data`.
pub fn job(data: &Path, output: &Path) -> TrainSpec {
    // One thread: these networks are too small to share, and machines that test are busy.
    tch::set_num_threads(1);
    // The generator is the process's: another test's weights must not come in between.
    static GENERATOR: Mutex<()> = Mutex::new(());
    let generator = GENERATOR.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    tch::manual_seed(3);
    let unet = UNetConfig {
        in_channels: 2,
        out_channels: 2,
        block_out_channels: vec![8, 12],
        down_block_types: vec!["CrossAttnDownBlock2D".into(), "DownBlock2D".into()],
        up_block_types: vec!["UpBlock2D".into(), "CrossAttnUpBlock2D".into()],
        layers_per_block: 1,
        norm_num_groups: 4,
        cross_attention_dim: i64::from(TEXT[1]),
        attention_head_dim: serde_json::from_str("2").unwrap(),
        ..UNetConfig::default()
    };
    let unet = UNet2DConditionModel::new(unet, Device::Cpu, ParamInit::Random).unwrap();
    drop(generator);
    let phase = |resolution, steps| PhaseConfig { steps, ..PhaseConfig::new(resolution) };
    TrainSpec {
        train: TrainConfig {
            global_batch: 8,
            micro_batch: 8,
            precision: Some(Precision::F32),
            learning_rate: 1e-3,
            warmup_steps: 5,
            ema: Some(EmaConfig { decay: 0.9, start_step: 15, ..EmaConfig::default() }),
            shuffle_window: 2,
            log_every: 1,
            phase: vec![phase(64, 12), phase(128, 28)],
            ..TrainConfig::default()
        },
        checkpoint: checkpoints(),
        world: World::single_process(),
        seed: 11,
        output: output.into(),
        data: Box::new(StoredDatasets(single_dataset(&Dataset::open(data.to_str().unwrap()).unwrap()))),
        denoiser: Box::new(unet),
        text_encoder: None,
        validation_set: None,
        scheduler: SchedulerConfig::default(),
        preview: None,
    }
}

/// The weights that a job starts with.
pub fn initial(job: &TrainSpec) -> Vec<(String, Vec<f32>)> {
    job.denoiser
        .params()
        .named_parameters()
        .into_iter()
        .map(|(name, tensor)| (name, numbers(&tensor)))
        .collect()
}

/// The values of a tensor.
pub fn numbers(tensor: &Tensor) -> Vec<f32> {
    Vec::try_from(tensor.detach().reshape([-1])).unwrap()
}

/// A folder of a test's own.
pub fn dir() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// The losses in `metrics.jsonl`.
pub fn losses(output: &Path) -> Vec<f64> {
    metric(output, "loss")
}

/// One number of each line of `metrics.jsonl`, which must have each step once and in order.
pub fn metric(output: &Path, name: &str) -> Vec<f64> {
    let text = std::fs::read_to_string(output.join("metrics.jsonl")).unwrap();
    let lines: Vec<serde_json::Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert!(lines.iter().zip(1u64..).all(|(line, step)| line["step"] == step), "{text}");
    lines.iter().map(|line| line[name].as_f64().unwrap()).collect()
}

/// Says nothing; stops, or dies, after a step if asked to.
#[derive(Default)]
pub struct Quiet {
    stop_after: Option<u64>,
    die_after: Option<u64>,
    stop: AtomicBool,
}

impl Quiet {
    pub fn stopping_after(step: u64) -> Self {
        Self { stop_after: Some(step), ..Self::default() }
    }

    /// As a process that is killed: no checkpoint of the last steps is written.
    pub fn dying_after(step: u64) -> Self {
        Self { die_after: Some(step), ..Self::default() }
    }
}

impl Observer for Quiet {
    fn on_step(&mut self, metrics: &StepMetrics, _total: u64) {
        if self.stop_after == Some(metrics.step) {
            self.stop.store(true, Ordering::Relaxed);
        }
        assert_ne!(self.die_after, Some(metrics.step), "killed, as the test asks");
    }

    fn log(&mut self, _message: &str) {}

    fn should_stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}
