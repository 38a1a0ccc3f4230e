//! The datasets of a stream: whether they fit each other, and the shards and blocks of each.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::bucket::Bucket;
use crate::dataset::reader::Dataset;
use crate::dataset::spec::{DatasetSpec, TensorSpec};
use crate::error::{Error, Result};
use crate::shard::buffer::BufferPool;
use crate::shard::cache::Cache;
use crate::shard::reader::ShardReader;
use crate::stream::config::StreamConfig;
use crate::stream::order::batch_plan::Indices;
use crate::stream::order::blocks::BlockIndex;
use crate::stream::state::{Phase, SINGLE_DATASET, SnapshotId, StreamState};

/// Datasets by the names that orders and mixes depend on.
pub type Datasets = BTreeMap<String, Dataset>;

/// A single dataset.
pub fn single_dataset(dataset: &Dataset) -> Datasets {
    [(SINGLE_DATASET.into(), dataset.clone())].into()
}

/// The shards of each dataset and bucket.
pub type AllShards<'a> = HashMap<(&'a str, Bucket), Arc<ShardReader>>;

/// The datasets that a phase takes rows from.
///
/// # Errors
/// [`Error::Config`] if one is not there, or if they do not fit each other.
pub fn datasets_of_phase(datasets: &Datasets, phase: &Phase) -> Result<Datasets> {
    let refuse = |problem: String| Err(Error::Config { key: "mix", problem });
    let mut taken = Datasets::new();
    for name in phase.mix.keys() {
        let Some(dataset) = datasets.get(name) else {
            let there: Vec<&str> = datasets.keys().map(String::as_str).collect();
            return refuse(format!("there is no dataset `{name}`, only {}", there.join(", ")));
        };
        if let Some((first, other)) = taken.first_key_value()
            && let Some(problem) = find_mismatch(other.spec(), dataset.spec())
        {
            return refuse(format!(
                "datasets `{first}` and `{name}` cannot be mixed: {problem}; prepare them with the same models and settings"
            ));
        }
        taken.insert(name.clone(), dataset.clone());
    }
    Ok(taken)
}

/// Why the rows of two datasets cannot be in one batch.
pub fn find_mismatch(a: &DatasetSpec, b: &DatasetSpec) -> Option<String> {
    let differ =
        |what: &str, a: &str, b: &str| (a != b).then(|| format!("their {what} differ ({a} and {b})"));
    let forms = || {
        let shared =
            a.latents.iter().filter_map(|(bucket, form)| Some((bucket, form, b.latents.get(bucket)?)));
        shared
            .filter(|(_, a, b)| a != b)
            .map(|(bucket, ..)| format!("their latents at {bucket} differ in form"))
            .next()
    };
    differ("VAEs", &a.models.vae, &b.models.vae)
        .or_else(|| differ("texts", &form(&a.text), &form(&b.text)))
        .or_else(|| differ("text encoders", text_encoder(a), text_encoder(b)))
        .or_else(|| differ("tokenizers", &a.models.tokenizer, &b.models.tokenizer))
        .or_else(|| differ("kinds of latents", &a.latents_kind, &b.latents_kind))
        .or_else(|| differ("scaling factors", &a.scaling_factor.to_string(), &b.scaling_factor.to_string()))
        .or_else(forms)
}

fn form(spec: &TensorSpec) -> String {
    let TensorSpec { dtype, shape } = spec.decoded();
    format!("{dtype} {shape:?}")
}

fn text_encoder(spec: &DatasetSpec) -> &str {
    spec.models.text_encoder.as_deref().unwrap_or("none")
}

/// The datasets at the snapshots that a state names, or at the newest if that says the same: one of its units may have been damaged, and
/// been written again. A dataset that the state does not know stays as it is; the state is refused later, by its name.
///
/// # Errors
/// [`Error::State`] if a snapshot is no longer there.
pub fn at_snapshots(datasets: &Datasets, state: &StreamState) -> Result<Datasets> {
    let at = |(name, dataset): (&String, &Dataset)| {
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
    datasets.iter().map(at).collect()
}

/// Puts datasets back to earlier snapshots, as far as they still have those. Gives each of these as it was given, and as it is
/// now.
pub fn roll_back_to(datasets: &mut Datasets, to: &BTreeMap<String, SnapshotId>) -> Vec<(Dataset, Dataset)> {
    let back = |(name, dataset): (&String, &mut Dataset)| {
        let SnapshotId { manifest, digest } = to.get(name)?;
        if digest == dataset.manifest_digest() {
            return None;
        }
        // Another dataset may have a snapshot of this number.
        let then = dataset.at_snapshot(*manifest).ok().filter(|then| then.manifest_digest() == digest)?;
        Some((std::mem::replace(dataset, then.clone()), then))
    };
    datasets.iter_mut().filter_map(back).collect()
}

/// The snapshots of datasets.
pub fn snapshot_ids(datasets: &Datasets) -> BTreeMap<String, SnapshotId> {
    let snapshot = |dataset: &Dataset| SnapshotId {
        manifest: dataset.snapshot_number(),
        digest: dataset.manifest_digest().to_owned(),
    };
    datasets.iter().map(|(name, dataset)| (name.clone(), snapshot(dataset))).collect()
}

/// ShardReader and blocks of the buckets at a resolution.
///
/// # Errors
/// [`Error::Empty`] if a dataset has no rows there.
pub fn open_shards<'a>(
    datasets: &'a Datasets,
    config: &StreamConfig,
    cache: Option<&Arc<Cache>>,
) -> Result<(AllShards<'a>, Indices)> {
    // Latents and text of two windows: as one is dealt out, the next is read, and room is made before it is needed again.
    let pool = BufferPool::new(2 * 2 * config.window);
    let (mut all, mut indices) = (AllShards::new(), Indices::new());
    for (name, dataset) in datasets {
        let mut buckets = dataset.buckets_with_rows(config.split, config.phase.resolution)?;
        buckets.retain(|bucket| config.bucket.is_none_or(|only| only == *bucket));
        let of_dataset = buckets.into_iter().map(|bucket| {
            let shards = ShardReader::new(dataset, config.split, bucket, cache.cloned(), pool.clone());
            let index = BlockIndex::new(shards.rows(), dataset.spec().row_group_rows);
            all.insert((name.as_str(), bucket), Arc::new(shards));
            (bucket, Arc::new(index))
        });
        let of_dataset = of_dataset.collect();
        indices.insert(name.clone(), of_dataset);
    }
    Ok((all, indices))
}
