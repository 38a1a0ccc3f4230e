//! What a training process trains on: latent datasets, or the run's pairs, which are encoded
//! meanwhile.

use std::sync::Arc;

use tch::Device;
use tidemill_models::{ModelFolder, TextEncoders};
use tidemill_store::stream::{Datasets, single_dataset};
use tidemill_store::{Dataset, Dtype, ModelDigests, Split};
use tidemill_train::{FrozenTextEncoders, MixConfig, StoredDatasets, TrainingData, ValidationSet};

use super::dataset_checks::{check_models, describe_changed_settings};
use super::encoder_devices::choose_encoder_devices;
use super::rank_arguments::RankArgs;
use crate::engine::dataset_spec::compute_model_digests;
use crate::error::Result;
use crate::online::{EncoderPlacement, EncodingMode, OnlineData, RemoteEncoders, RowAccounting};
use crate::progress::Reporter;
use crate::run_file::Run;

/// The training data of this process, and what belongs to it.
pub struct OpenedData {
    pub data: Box<dyn TrainingData>,
    /// Encode captions, if the data contain token ids.
    pub text_encoders: Option<FrozenTextEncoders>,
    /// The rows for the loss of `train.validation`.
    pub validation_set: Option<ValidationSet>,
    /// What became of the pairs of online training.
    pub rows: Option<Arc<RowAccounting>>,
}

/// Opens the data that this process trains on. `devices` are those of the machine.
/// `remote_encoders` encode the pairs of online training in place of this process.
///
/// # Errors
/// If the data cannot be opened, or other models made them.
pub fn open_training_data(
    run: &Run,
    mode: EncodingMode,
    rank: &RankArgs,
    devices: &[Device],
    remote_encoders: Option<Arc<dyn RemoteEncoders>>,
    reporter: &Reporter,
) -> Result<OpenedData> {
    let (models, device) = (run.models()?, devices[rank.local_rank % devices.len()]);
    let (data, digests, rows): (Box<dyn TrainingData>, _, _) = match mode {
        EncodingMode::Offline => {
            let datasets = open_datasets(run)?;
            let digests = check_models(run, &models, &datasets)?;
            describe_changed_settings(run, &datasets).iter().for_each(|line| reporter.report(line));
            (Box::new(StoredDatasets(datasets)), digests, None)
        }
        EncodingMode::Online | EncodingMode::Colocated => {
            let digests = compute_model_digests(&models)?;
            let encoders = match (mode, remote_encoders) {
                (EncodingMode::Online, Some(remote)) => EncoderPlacement::Remote(remote),
                (EncodingMode::Online, None) => {
                    let slots = rank.slots.unwrap_or(rank.local_world_size);
                    EncoderPlacement::LocalDevices(choose_encoder_devices(devices, rank.local_rank, slots))
                }
                _ => EncoderPlacement::Trainer,
            };
            let online = OnlineData::open(run, digests.clone(), device, encoders)?;
            let rows = Some(online.accounting());
            (Box::new(online), digests, rows)
        }
    };
    let text_encoders = load_text_encoders(run, &models, &digests, &*data, device)?;
    let validation_set = open_validation_set(run, mode, &models)?;
    Ok(OpenedData { data, text_encoders, validation_set, rows })
}

/// Opens the rows for the loss of `train.validation`.
///
/// # Errors
/// If the dataset cannot be opened or was made by other models, or online training names no
/// dataset.
fn open_validation_set(run: &Run, mode: EncodingMode, models: &ModelFolder) -> Result<Option<ValidationSet>> {
    let Some(config) = &run.file.train.validation else { return Ok(None) };
    let validation_set = match (&config.dataset, mode) {
        (Some(uri), _) => {
            ValidationSet { datasets: single_dataset(&Dataset::open(uri)?), split: Split::Train }
        }
        (None, EncodingMode::Offline) => {
            ValidationSet { datasets: open_datasets(run)?, split: Split::Validation }
        }
        (None, _) => {
            let message = "the rows that this run holds out are not stored; name a latent dataset that these models made";
            return Err(run.refuse("train.validation", message));
        }
    };
    check_models(run, models, &validation_set.datasets)?;
    Ok(Some(validation_set))
}

/// Opens the datasets of `train.mix`, or the run's own dataset.
fn open_datasets(run: &Run) -> Result<Datasets> {
    let mix = &run.file.train.mix;
    if mix.is_empty() {
        return Ok(single_dataset(&Dataset::open(&run.dataset())?));
    }
    let open = |entry: &MixConfig| {
        let uri = entry.dataset.clone().unwrap_or_else(|| run.dataset());
        Ok((entry.name.clone(), Dataset::open(&uri)?))
    };
    mix.iter().map(open).collect()
}

/// Loads the text encoders if the data contain token ids only. Their number format is the one that
/// `preprocess` would use.
fn load_text_encoders(
    run: &Run,
    models: &ModelFolder,
    digests: &ModelDigests,
    data: &dyn TrainingData,
    device: Device,
) -> Result<Option<FrozenTextEncoders>> {
    if data.spec()?.text.dtype != Dtype::I32 {
        return Ok(None);
    }
    let digests = digests.text_encoders().map(|digests| digests.text_encoder.unwrap_or_default()).collect();
    let models = TextEncoders::load(models, device, run.file.encode.dtype.to_kind())?;
    Ok(Some(FrozenTextEncoders { models, digests }))
}
