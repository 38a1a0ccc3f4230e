//! The datasets of a stream: checks that they fit each other, and finds their snapshots, shards and
//! blocks.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::bucket::Bucket;
use crate::dataset::reader::Dataset;
use crate::dataset::spec::{DatasetSpec, TensorSpec, TextEncoderDigests};
use crate::dataset::text_column::TextColumn;
use crate::error::{Error, Result};
use crate::shard::buffer_pool::BufferPool;
use crate::shard::reader::ShardReader;
use crate::shard::row_group_cache::Cache;
use crate::stream::config::StreamConfig;
use crate::stream::order::batch_plan::Indices;
use crate::stream::order::blocks::BlockIndex;
use crate::stream::state::{Phase, SINGLE_DATASET, SnapshotId, StreamState};

/// Datasets by name. Orders and mixes depend on the names.
pub type Datasets = BTreeMap<String, Dataset>;

/// A single dataset under the name [`SINGLE_DATASET`].
pub fn single_dataset(dataset: &Dataset) -> Datasets {
    [(SINGLE_DATASET.into(), dataset.clone())].into()
}

/// The shards of each dataset and bucket.
pub type ShardReaders<'a> = HashMap<(&'a str, Bucket), Arc<ShardReader>>;

/// The datasets that a phase takes rows from.
///
/// # Errors
/// [`Error::Config`] if a dataset is missing, or if the datasets do not fit each other.
pub fn datasets_of_phase(datasets: &Datasets, phase: &Phase) -> Result<Datasets> {
    let refuse = |problem: String| Err(Error::Config { key: "mix", problem });
    let mut chosen = Datasets::new();
    for name in phase.mix.keys() {
        let Some(dataset) = datasets.get(name) else {
            let names: Vec<&str> = datasets.keys().map(String::as_str).collect();
            return refuse(format!("there is no dataset `{name}`, only {}", names.join(", ")));
        };
        if let Some((first, other)) = chosen.first_key_value()
            && let Some(problem) = find_mismatch(other.spec(), dataset.spec())
        {
            return refuse(format!(
                "datasets `{first}` and `{name}` cannot be mixed: {problem}; prepare them with the same models and settings"
            ));
        }
        chosen.insert(name.clone(), dataset.clone());
    }
    Ok(chosen)
}

/// Describes why the rows of two datasets cannot be in one batch, or returns `None` if they can.
pub fn find_mismatch(a: &DatasetSpec, b: &DatasetSpec) -> Option<String> {
    let differ =
        |what: &str, a: &str, b: &str| (a != b).then(|| format!("their {what} differ ({a} and {b})"));
    let latents_shapes = || {
        let shared =
            a.latents.iter().filter_map(|(bucket, form)| Some((bucket, form, b.latents.get(bucket)?)));
        shared
            .filter(|(_, a, b)| a != b)
            .map(|(bucket, ..)| format!("their latents at {bucket} have different shapes"))
            .next()
    };
    differ("VAEs", &a.models.vae, &b.models.vae)
        .or_else(|| differ("texts", &describe_texts(a), &describe_texts(b)))
        .or_else(|| differ("text encoders", &text_encoders(a), &text_encoders(b)))
        .or_else(|| differ("tokenizers", &tokenizers(a), &tokenizers(b)))
        .or_else(|| differ("sizes of image and crop", time_ids(a), time_ids(b)))
        .or_else(|| differ("kinds of latents", &a.latents_kind, &b.latents_kind))
        .or_else(|| differ("scaling factors", &a.scaling_factor.to_string(), &b.scaling_factor.to_string()))
        .or_else(|| differ("shift factors", &a.shift_factor.to_string(), &b.shift_factor.to_string()))
        .or_else(latents_shapes)
}

/// The forms of all text columns; the first has no name, because it is in every dataset.
fn describe_texts(spec: &DatasetSpec) -> String {
    let describe = |(column, spec): (TextColumn, &TensorSpec)| {
        let TensorSpec { dtype, shape } = spec.decoded();
        let name = if column == TextColumn::FIRST { String::new() } else { format!("{column} ") };
        format!("{name}{dtype} {shape:?}")
    };
    spec.text_columns().map(describe).collect::<Vec<_>>().join(", ")
}

fn text_encoders(spec: &DatasetSpec) -> String {
    let digest = |encoder: TextEncoderDigests| encoder.text_encoder.unwrap_or_else(|| "none".into());
    spec.models.text_encoders().map(digest).collect::<Vec<_>>().join(", ")
}

fn tokenizers(spec: &DatasetSpec) -> String {
    spec.models.text_encoders().map(|encoder| encoder.tokenizer).collect::<Vec<_>>().join(", ")
}

fn time_ids(spec: &DatasetSpec) -> &'static str {
    if spec.has_time_ids { "stored" } else { "none" }
}

/// Opens the datasets at the snapshots that a state names. Keeps the newest snapshot if its content
/// is the same, because a damaged unit may have been written again. A dataset that the state does
/// not know stays as it is; the state is refused later by that name.
///
/// # Errors
/// [`Error::State`] if a snapshot no longer exists.
pub fn open_at_snapshots(datasets: &Datasets, state: &StreamState) -> Result<Datasets> {
    let open_at_snapshot = |(name, dataset): (&String, &Dataset)| {
        let dataset = match state.datasets.get(name) {
            None => dataset.clone(),
            Some(SnapshotId { digest, .. }) if digest == dataset.manifest_digest() => dataset.clone(),
            Some(SnapshotId { manifest, .. }) => dataset.at_snapshot(*manifest).map_err(|e| {
                let uri = dataset.location().uri();
                Error::State(format!(
                    "it needs snapshot {manifest} of the dataset, which {uri} does not have ({e}), as `tidemill gc` has removed it; \
                     export the weights, and begin a run of another output with them"
                ))
            })?,
        };
        Ok((name.clone(), dataset))
    };
    datasets.iter().map(open_at_snapshot).collect()
}

/// Moves datasets back to earlier snapshots, as far as those still exist. Returns each moved
/// dataset as it was before and as it is now.
pub fn roll_back_to(datasets: &mut Datasets, to: &BTreeMap<String, SnapshotId>) -> Vec<(Dataset, Dataset)> {
    let roll_back = |(name, dataset): (&String, &mut Dataset)| {
        let SnapshotId { manifest, digest } = to.get(name)?;
        if digest == dataset.manifest_digest() {
            return None;
        }
        // Another dataset may have a snapshot with this number.
        let earlier =
            dataset.at_snapshot(*manifest).ok().filter(|earlier| earlier.manifest_digest() == digest)?;
        Some((std::mem::replace(dataset, earlier.clone()), earlier))
    };
    datasets.iter_mut().filter_map(roll_back).collect()
}

/// The snapshot that each dataset is at.
pub fn snapshot_ids(datasets: &Datasets) -> BTreeMap<String, SnapshotId> {
    let snapshot = |dataset: &Dataset| SnapshotId {
        manifest: dataset.snapshot_number(),
        digest: dataset.manifest_digest().to_owned(),
    };
    datasets.iter().map(|(name, dataset)| (name.clone(), snapshot(dataset))).collect()
}

/// Opens the shards and blocks of the buckets at a resolution.
///
/// # Errors
/// [`Error::Empty`] if a dataset has no rows there.
pub fn open_shards<'a>(
    datasets: &'a Datasets,
    config: &StreamConfig,
    cache: Option<&Arc<Cache>>,
) -> Result<(ShardReaders<'a>, Indices)> {
    // Latents and text of two windows: while batches take rows from one, the next is read. Factor
    // two again, because the next window needs memory before the last one is free.
    let pool = BufferPool::new(2 * 2 * config.window);
    let (mut all, mut indices) = (ShardReaders::new(), Indices::new());
    for (name, dataset) in datasets {
        let mut buckets = dataset.buckets_with_rows(config.split, config.phase.resolution)?;
        buckets.retain(|bucket| config.bucket.is_none_or(|only| only == *bucket));
        let dataset_indices = buckets.into_iter().map(|bucket| {
            let shards = ShardReader::new(dataset, config.split, bucket, cache.cloned(), pool.clone());
            let index = BlockIndex::new(shards.rows(), dataset.spec().row_group_rows);
            all.insert((name.as_str(), bucket), Arc::new(shards));
            (bucket, Arc::new(index))
        });
        let dataset_indices = dataset_indices.collect();
        indices.insert(name.clone(), dataset_indices);
    }
    Ok((all, indices))
}
