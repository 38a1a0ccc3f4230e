//! Checks of the datasets to train on: refuses datasets that other models made, and reports
//! settings of the run file that differ from those of the datasets.

use serde_json::Value;
use tidemill_models::ModelFolder;
use tidemill_store::stream::Datasets;
use tidemill_store::{Dataset, DatasetSpec, ModelDigests};
use tidemill_train::{Difference, find_differences};

use crate::engine::dataset_spec::{compute_model_digests, pixel_settings, row_settings};
use crate::error::Result;
use crate::run_file::Run;

/// Refuses datasets whose tensors were made by other models than those of the run. Images would be
/// drawn with the wrong models. Returns the digests of the run's models.
///
/// # Errors
/// If a dataset was made by another VAE, text encoder or tokenizer.
pub fn check_models(run: &Run, models: &ModelFolder, datasets: &Datasets) -> Result<ModelDigests> {
    let expected = compute_model_digests(models)?;
    for dataset in datasets.values() {
        let found = &dataset.spec().models;
        let different = describe_other_models(found, &expected);
        if !different.is_empty() {
            let message = format!(
                "the dataset {} was made with another {}; name the models that made it, or preprocess again",
                dataset.location().uri(),
                different.join(" and another ")
            );
            return Err(run.refuse("models.path", message));
        }
    }
    Ok(expected)
}

/// The models of a dataset that are not those of the run. A dataset of token ids has no digests of text encoders.
fn describe_other_models(found: &ModelDigests, expected: &ModelDigests) -> Vec<String> {
    let mut parts = vec![("VAE".to_owned(), found.vae.clone(), expected.vae.clone())];
    let (found, expected): (Vec<_>, Vec<_>) =
        (found.text_encoders().collect(), expected.text_encoders().collect());
    for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let number = if index == 0 { String::new() } else { format!(" {}", index + 1) };
        if let (Some(found), Some(expected)) = (&found.text_encoder, &expected.text_encoder) {
            parts.push((format!("text encoder{number}"), found.clone(), expected.clone()));
        }
        parts.push((format!("tokenizer{number}"), found.tokenizer.clone(), expected.tokenizer.clone()));
    }
    let different = parts.iter().filter(|(_, found, expected)| found != expected);
    let mut lines: Vec<String> = different
        .map(|(name, found, expected)| format!("{name} (digest {found}; the run's is {expected})"))
        .collect();
    if found.len() != expected.len() {
        lines.push(format!("number of text encoders ({}; the run's is {})", found.len(), expected.len()));
    }
    lines
}

/// One line for each setting of the run file that training ignores, because the datasets were made
/// with another value.
pub fn describe_changed_settings(run: &Run, datasets: &Datasets) -> Vec<String> {
    let mut lines = describe_changed_shares(run, datasets);
    lines.extend(describe_changed_preprocessing(run, datasets));
    lines
}

/// Datasets that hold out another share of the rows than the run file. The share is fixed when a
/// dataset is made.
fn describe_changed_shares(run: &Run, datasets: &Datasets) -> Vec<String> {
    let share = run.file.validation.share;
    let other = datasets.values().filter(|dataset| share > 0.0 && dataset.spec().validation_share != share);
    let line = |dataset: &Dataset| {
        format!(
            "{} holds out {} of its rows, as when it was made, and not the {share} of validation.share: preprocess or \
             import it again to change that",
            dataset.location().uri(),
            dataset.spec().validation_share
        )
    };
    other.map(line).collect()
}

/// Settings of preprocessing that changed since the run's own dataset was made.
fn describe_changed_preprocessing(run: &Run, datasets: &Datasets) -> Vec<String> {
    let mix = &run.file.train.mix;
    let is_own =
        |name: &str| mix.is_empty() || mix.iter().any(|entry| entry.name == name && entry.dataset.is_none());
    let own = datasets.iter().filter(|(name, _)| is_own(name));
    own.flat_map(|(_, dataset)| {
        let DatasetSpec { prepare, rows, .. } = dataset.spec();
        let prepare = describe_changes("prepare.", prepare, &pixel_settings(run));
        prepare.into_iter().chain(describe_changes("", rows, &row_settings(run)))
    })
    .collect()
}

/// One line for each setting of a section that changed. Settings that only one side has are
/// ignored: imported datasets have other settings, and datasets of earlier versions have fewer.
fn describe_changes(section: &str, made_with: &Value, now: &Value) -> Vec<String> {
    let has_both = |Difference { path, .. }: &Difference| {
        let key = path.split('.').next().unwrap_or_default();
        made_with.get(key).is_some() && now.get(key).is_some()
    };
    let line = |Difference { path, first, second }| {
        format!(
            "{section}{path} was {first} when the dataset was made and is {second} now; run `tidemill preprocess` to \
             apply it"
        )
    };
    find_differences(made_with, now).into_iter().filter(has_both).map(line).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn changed_settings_are_described_with_both_values() {
        let now = json!({ "crop": "center", "flip": false, "filter": { "min_side": 64, "score": {} } });
        let before = json!({ "crop": "random", "filter": { "min_side": null, "score": {} }, "old": 1 });
        let lines = describe_changes("prepare.", &before, &now);
        assert!(lines.len() == 2 && lines[0].starts_with("prepare.crop was \"random\""), "{lines:?}");
        assert!(
            lines[1].starts_with("prepare.filter.min_side was null") && lines[1].contains("is 64 now"),
            "{lines:?}"
        );
        for same in [&now, &json!({ "imported": "mds" }), &Value::Null] {
            assert!(describe_changes("", same, &now).is_empty());
        }
    }
}
