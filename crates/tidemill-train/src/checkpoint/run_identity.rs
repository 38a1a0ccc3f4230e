//! What a checkpoint was made with, as far as a run that goes on from it, or an export of it, must have the same.

use serde_json::{Value, json};
use tidemill_models::SchedulerConfig;
use tidemill_store::{DatasetSpec, ModelDigests};

use crate::train_spec::TrainSpec;

/// What of schedules and networks shapes samples, and nothing that is trained.
const OF_SAMPLERS: [&str; 4] = ["timestep_spacing", "steps_offset", "set_alpha_to_one", "sample_size"];

/// What an online run's parts are digests of.
const SETTINGS: [(&str, &str); 5] = [
    ("source", "[source]"),
    ("rows", "[filter], [caption], source.columns or [validation]"),
    ("images", "[prepare]"),
    ("models", "[models] or encode.dtype"),
    ("window", "online.window"),
];

/// What a checkpoint must have been made with to be resumed.
pub(crate) fn identity(job: &TrainSpec, spec: &DatasetSpec, schedule: &SchedulerConfig) -> Value {
    let (network, denoiser) = job.denoiser.identity();
    let (name, data) = job.data.identity();
    let ModelDigests { vae, text_encoder, tokenizer } = &spec.models;
    json!({
        "seed": job.seed,
        "global_batch": job.train.global_batch,
        network: denoiser,
        "scheduler": schedule,
        name: data,
        "vae": vae,
        "text_encoder": job.text_encoder.as_ref().map(|encoder| &encoder.digest).or(text_encoder.as_ref()),
        "tokenizer": tokenizer,
    })
}

/// Whether a part of the identity is what a run or an export has now.
pub fn is_same(key: &str, trained: Option<&Value>, now: &Value) -> bool {
    match (key, trained) {
        // Earlier versions did not say.
        ("vae" | "text_encoder" | "tokenizer", None) => true,
        (_, trained) => trained.is_some_and(|trained| of_training(key, trained) == of_training(key, now)),
    }
}

/// What of a part of the identity is not what it was, for people: a number, or which settings.
pub(crate) fn what_differs(key: &str, trained: Option<&Value>, now: &Value) -> String {
    match (trained.map(|trained| of_training(key, trained)), of_training(key, now)) {
        (Some(Value::Object(trained)), Value::Object(now)) => {
            let parts = now.iter().filter(|(part, now)| trained.get(*part) != Some(now)).map(|(part, _)| {
                let setting = SETTINGS.iter().find(|(name, _)| key == "online" && name == part);
                setting.map_or(part.as_str(), |(_, setting)| setting)
            });
            format!("{key} ({})", parts.collect::<Vec<_>>().join(", "))
        }
        (Some(Value::Number(trained)), now) => format!("{key} ({trained}, now {now})"),
        _ => key.into(),
    }
}

fn of_training(key: &str, part: &Value) -> Value {
    let mut part = part.clone();
    if let Some(settings) = part.as_object_mut().filter(|_| ["scheduler", "unet"].contains(&key)) {
        settings.retain(|key, _| !OF_SAMPLERS.contains(&key.as_str()));
    }
    part
}
