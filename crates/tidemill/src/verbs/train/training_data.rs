//! What a training process is given to train on: latent datasets, or the run's pairs as they come.

use std::sync::Arc;

use serde_json::Value;
use tch::Device;
use tidemill_models::{ClipTextModel, ModelFolder};
use tidemill_store::stream::{Datasets, single_dataset};
use tidemill_store::{Dataset, DatasetSpec, Dtype, ModelDigests, Split};
use tidemill_train::{
    Difference, MixConfig, StoredDatasets, TextEncoder, TrainingData, ValidationSet, differences,
};

use crate::engine::dataset_sink::{model_digests, of_pixels, of_rows};
use crate::error::Result;
use crate::online::{Elsewhere, Encoders, Ledger, Mode, Online};
use crate::progress::Reporter;
use crate::run_file::Run;
use crate::verbs::train::rank_arguments::RankArgs;

/// The data, and what goes with them.
pub struct Given {
    pub data: Box<dyn TrainingData>,
    /// For data that hold token ids.
    pub text_encoder: Option<TextEncoder>,
    /// What `train.validation` takes the loss of.
    pub validation_set: Option<ValidationSet>,
    /// What becomes of pairs that come without a dataset.
    pub rows: Option<Arc<Ledger>>,
}

/// What this process trains on; `devices` are those of the machine. Online, others may encode.
pub fn given(
    run: &Run,
    mode: Mode,
    place: &RankArgs,
    devices: &[Device],
    elsewhere: Option<Arc<dyn Elsewhere>>,
    reporter: &Reporter,
) -> Result<Given> {
    let (models, device) = (run.models()?, devices[place.local_rank % devices.len()]);
    let (data, digests, rows): (Box<dyn TrainingData>, _, _) = match mode {
        Mode::Offline => {
            let datasets = datasets(run)?;
            let digests = check_models(run, &models, &datasets)?;
            let remarks = other_shares(run, &datasets).into_iter().chain(other_settings(run, &datasets));
            remarks.for_each(|remark| reporter.report(remark));
            (Box::new(StoredDatasets(datasets)), digests, None)
        }
        Mode::Online | Mode::Colocated => {
            let digests = model_digests(&models)?;
            let encoders = match (mode, elsewhere) {
                (Mode::Online, Some(elsewhere)) => Encoders::Elsewhere(elsewhere),
                (Mode::Online, None) => {
                    let places = place.places.unwrap_or(place.local_world_size);
                    Encoders::Devices(encoders(devices, place.local_rank, places))
                }
                _ => Encoders::Trainer,
            };
            let online = Online::open(run, digests.clone(), device, encoders)?;
            let rows = Some(online.ledger());
            (Box::new(online), digests, rows)
        }
    };
    let text_encoder = text_encoder(run, &models, digests, &*data, device)?;
    let validation_set = validation_set(run, mode, &models)?;
    Ok(Given { data, text_encoder, validation_set, rows })
}

/// The devices that encode for a rank: its part of those that nobody trains on, one of them that it shares with other ranks if there
/// are fewer than ranks, or else its own. The first devices are the trainers', also of ranks that are left out: for a reason.
fn encoders(devices: &[Device], local_rank: usize, trainers: usize) -> Vec<Device> {
    let spare = devices.get(trainers..).unwrap_or_default();
    match spare.len() {
        0 => vec![devices[local_rank % devices.len()]],
        few if few < trainers => vec![spare[local_rank % few]],
        _ => spare.iter().skip(local_rank).step_by(trainers).copied().collect(),
    }
}

/// What `train.validation` takes the loss of.
///
/// # Errors
/// If the dataset cannot be opened or was made by other models, or if none is named where nothing is stored.
fn validation_set(run: &Run, mode: Mode, models: &ModelFolder) -> Result<Option<ValidationSet>> {
    let Some(config) = &run.file.train.validation else { return Ok(None) };
    let validation_set = match (&config.dataset, mode) {
        (Some(uri), _) => {
            ValidationSet { datasets: single_dataset(&Dataset::open(uri)?), split: Split::Train }
        }
        (None, Mode::Offline) => ValidationSet { datasets: datasets(run)?, split: Split::Validation },
        (None, _) => {
            let message = "the rows that this run holds out are not stored; name a latent dataset that these models made";
            return Err(run.refuse("train.validation", message));
        }
    };
    check_models(run, models, &validation_set.datasets)?;
    Ok(Some(validation_set))
}

/// The datasets in the mix, or the run's own.
fn datasets(run: &Run) -> Result<Datasets> {
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

/// What to tell of datasets that hold out other rows than the run file says: that is settled when they are made.
fn other_shares(run: &Run, datasets: &Datasets) -> Vec<String> {
    let asked = run.file.validation.share;
    let other = datasets.values().filter(|dataset| asked > 0.0 && dataset.spec().validation_share != asked);
    let remark = |dataset: &Dataset| {
        format!(
            "{} holds out {} of its rows, as it was made, and not the {asked} of validation.share: preprocess or import it again to \
             change that",
            dataset.location().uri(),
            dataset.spec().validation_share
        )
    };
    other.map(remark).collect()
}

/// What to tell of settings that have changed since the run's own dataset was made with them.
fn other_settings(run: &Run, datasets: &Datasets) -> Vec<String> {
    let mix = &run.file.train.mix;
    let is_own =
        |name: &str| mix.is_empty() || mix.iter().any(|entry| entry.name == name && entry.dataset.is_none());
    let own = datasets.iter().filter(|(name, _)| is_own(name));
    own.flat_map(|(_, dataset)| {
        let DatasetSpec { prepare, rows, .. } = dataset.spec();
        changed("prepare.", prepare, &of_pixels(run)).into_iter().chain(changed("", rows, &of_rows(run)))
    })
    .collect()
}

/// Says of each setting of a table what it was and is, as far as both know of it: imported datasets have others, and those of earlier
/// versions fewer.
fn changed(table: &str, made_with: &Value, now: &Value) -> Vec<String> {
    let known = |Difference { path, .. }: &Difference| {
        let key = path.split('.').next().unwrap_or_default();
        made_with.get(key).is_some() && now.get(key).is_some()
    };
    let remark = |Difference { path, first, second }| {
        format!(
            "{table}{path} was {first} when the dataset was made, and is {second} now, which `tidemill preprocess` applies"
        )
    };
    differences(made_with, now).into_iter().filter(known).map(remark).collect()
}

/// Refuses datasets whose tensors other models made than those that the pictures will be drawn with.
/// Gives their digests.
fn check_models(run: &Run, models: &ModelFolder, datasets: &Datasets) -> Result<ModelDigests> {
    let ours = model_digests(models)?;
    for dataset in datasets.values() {
        let theirs = &dataset.spec().models;
        let mut parts =
            vec![("VAE", &theirs.vae, &ours.vae), ("tokenizer", &theirs.tokenizer, &ours.tokenizer)];
        if let (Some(theirs), Some(ours)) = (&theirs.text_encoder, &ours.text_encoder) {
            parts.insert(1, ("text encoder", theirs, ours));
        }
        let other = parts.iter().filter(|(_, theirs, ours)| theirs != ours);
        let other = other.map(|(name, theirs, ours)| format!("{name} (digest {theirs}, here {ours})"));
        let other: Vec<String> = other.collect();
        if !other.is_empty() {
            let message = format!(
                "the dataset {} was made with another {}; name the models that made it, or preprocess again",
                dataset.location().uri(),
                other.join(" and another ")
            );
            return Err(run.refuse("models.path", message));
        }
    }
    Ok(ours)
}

/// What encodes captions where the data hold token ids only, in the number format in which `preprocess` would have.
fn text_encoder(
    run: &Run,
    models: &ModelFolder,
    digests: ModelDigests,
    data: &dyn TrainingData,
    device: Device,
) -> Result<Option<TextEncoder>> {
    if data.spec()?.text.dtype != Dtype::I32 {
        return Ok(None);
    }
    let model = ClipTextModel::load(&models.text_encoder(), device, run.file.encode.dtype.kind())?;
    Ok(Some(TextEncoder { model, digest: digests.text_encoder.unwrap_or_default() }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_that_have_changed_are_named() {
        let now = json!({ "crop": "center", "flip": false, "filter": { "min_side": 64, "score": {} } });
        let then = json!({ "crop": "random", "filter": { "min_side": null, "score": {} }, "old": 1 });
        let told = changed("prepare.", &then, &now);
        assert!(told.len() == 2 && told[0].starts_with("prepare.crop was \"random\""), "{told:?}");
        assert!(
            told[1].starts_with("prepare.filter.min_side was null") && told[1].contains("is 64 now"),
            "{told:?}"
        );
        for same in [&now, &json!({ "imported": "mds" }), &Value::Null] {
            assert!(changed("", same, &now).is_empty());
        }
    }

    #[test]
    fn encoders_have_devices_of_their_own_where_there_are_any() {
        let gpus: Vec<Device> = (0..8).map(Device::Cuda).collect();
        let of = |n: usize, rank, trainers| -> Vec<usize> {
            let number = |device: &Device| if let Device::Cuda(n) = device { *n } else { usize::MAX };
            encoders(&gpus[..n], rank, trainers).iter().map(number).collect()
        };
        assert_eq!((of(8, 0, 1), of(8, 1, 4)), ((1..8).collect(), vec![5]));
        assert_eq!((of(8, 0, 3), of(8, 1, 3), of(8, 2, 3)), (vec![3, 6], vec![4, 7], vec![5]));
        assert_eq!((of(1, 0, 1), of(4, 3, 4), of(1, 1, 2)), (vec![0], vec![3], vec![0]));
        // Ranks are in lockstep: one that encoded on its own would hold up all.
        assert_eq!((of(3, 0, 2), of(3, 1, 2)), (vec![2], vec![2]));
        assert_eq!([0, 1, 2, 5].map(|rank| of(8, rank, 6)), [[6], [7], [6], [7]]);
    }
}
