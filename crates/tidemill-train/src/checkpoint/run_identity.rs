//! The identity of a run: what a run must have in common with a checkpoint to resume from it or to
//! export it.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tidemill_models::{SchedulerConfig, TextJoin};
use tidemill_store::{DatasetSpec, ModelDigests};

use crate::train_spec::TrainSpec;

/// Settings of schedules and networks that only affect sampling, not training.
const SAMPLING_ONLY: [&str; 4] = ["timestep_spacing", "steps_offset", "set_alpha_to_one", "sample_size"];

/// The settings that each entry of an online run's identity is a digest of.
const ONLINE_SETTINGS: [(&str, &str); 5] = [
    ("source", "[source]"),
    ("rows", "[filter], [caption], source.columns or [validation]"),
    ("images", "[prepare]"),
    ("models", "[models] or encode.dtype"),
    ("window", "online.window"),
];

/// Computes the identity of a run.
pub(crate) fn compute_run_identity(
    train: &TrainSpec,
    spec: &DatasetSpec,
    schedule: &SchedulerConfig,
) -> Value {
    let (network, denoiser) = train.denoiser.identity();
    let (name, data) = train.data.identity();
    let ModelDigests { vae, text_encoder, tokenizer, more_text_encoders } = &spec.models;
    let encoder_digest = |index: usize, stored: Option<&String>| {
        let loaded = train.text_encoders.as_ref().and_then(|encoders| encoders.digests.get(index));
        loaded.or(stored).cloned()
    };
    let mut identity = json!({
        "seed": train.seed,
        "global_batch": train.train.global_batch,
        network: denoiser,
        "scheduler": schedule,
        name: data,
        "vae": vae,
        "text_encoder": encoder_digest(0, text_encoder.as_ref()),
        "tokenizer": tokenizer,
    });
    for (index, encoder) in (1..).zip(more_text_encoders) {
        identity[format!("text_encoder_{}", index + 1)] =
            encoder_digest(index, encoder.text_encoder.as_ref()).into();
        identity[format!("tokenizer_{}", index + 1)] = encoder.tokenizer.clone().into();
    }
    if let TextJoin::Padded { t5_tokens, .. } = train.text_join {
        identity["max_sequence_length"] = t5_tokens.into();
    }
    identity
}

/// Whether an entry of the identity is the same in a checkpoint and in a run or an export now.
pub fn is_same_identity(key: &str, stored: Option<&Value>, now: &Value) -> bool {
    match (key, stored) {
        // Checkpoints of earlier versions lack these.
        ("vae" | "text_encoder" | "tokenizer", None) => true,
        (_, stored) => {
            stored.is_some_and(|stored| without_sampling(key, stored) == without_sampling(key, now))
        }
    }
}

/// Describes the change of an entry of the identity, for messages: both numbers, or which settings
/// changed.
pub(crate) fn describe_change(key: &str, stored: Option<&Value>, now: &Value) -> String {
    match (stored.map(|stored| without_sampling(key, stored)), without_sampling(key, now)) {
        (Some(Value::Object(stored)), Value::Object(now)) => {
            // Settings that are off have no entry.
            let entries: BTreeSet<&String> = stored.keys().chain(now.keys()).collect();
            let changed = entries.into_iter().filter(|entry| stored.get(*entry) != now.get(*entry));
            let settings = changed.map(|entry| {
                let setting = ONLINE_SETTINGS.iter().find(|(name, _)| key == "online" && name == entry);
                setting.map_or(entry.as_str(), |(_, setting)| setting)
            });
            format!("{key} ({})", settings.collect::<Vec<_>>().join(", "))
        }
        (Some(Value::Number(stored)), now) => format!("{key} ({stored}, now {now})"),
        _ => key.into(),
    }
}

/// An entry of the identity without settings that only affect sampling.
fn without_sampling(key: &str, entry: &Value) -> Value {
    let mut entry = entry.clone();
    if let Some(settings) = entry.as_object_mut().filter(|_| ["scheduler", "unet"].contains(&key)) {
        settings.retain(|key, _| !SAMPLING_ONLY.contains(&key.as_str()));
    }
    entry
}
