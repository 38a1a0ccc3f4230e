use std::path::Path;
use std::sync::Mutex;

use tch::Device;
use tidemill_models::{ParamInit, SchedulerConfig, TextJoin, UNet2DConditionModel, UNetConfig};
use tidemill_store::Dataset;
use tidemill_store::stream::single_dataset;
use tidemill_train::{
    CheckpointConfig, EmaConfig, Error, PhaseConfig, Precision, StoredDatasets, TrainConfig, TrainOutcome,
    TrainSpec, World, train,
};

use super::dataset_fixture::TEXT;
use super::test_observer::TestObserver;

/// The steps of [`train_spec`]: 12 at 64 pixels, then 28 at 128.
pub const STEPS: u64 = 40;

/// The checkpoints of [`train_spec`].
pub fn checkpoint_config() -> CheckpointConfig {
    CheckpointConfig { every: 10, keep: 3, ..CheckpointConfig::default() }
}

/// The dataset at a location.
pub fn stored_datasets(location: &Path) -> StoredDatasets {
    StoredDatasets(single_dataset(&Dataset::open(location.to_str().unwrap()).unwrap()))
}

/// Trains without looking at messages.
pub fn train_quietly(spec: TrainSpec) -> Result<TrainOutcome, Error> {
    train(spec, &mut TestObserver::default())
}

/// A run of 40 steps over two phases, in f32, on the dataset in `data`.
pub fn train_spec(data: &Path, output: &Path) -> TrainSpec {
    // One thread: the network is too small for more, and tests run side by side.
    tch::set_num_threads(1);
    // The generator belongs to the process: no other test may draw in between.
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
        checkpoint: checkpoint_config(),
        world: World::single_process(),
        seed: 11,
        output: output.into(),
        data: Box::new(stored_datasets(data)),
        denoiser: Box::new(unet),
        text_encoders: None,
        text_join: TextJoin::SideBySide,
        validation_set: None,
        scheduler: SchedulerConfig::default(),
        preview: None,
    }
}
