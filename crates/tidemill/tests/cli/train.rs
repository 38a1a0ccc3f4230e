//! What `train` takes from datasets: buckets of several sizes, several datasets, and only those of its own models.

use std::path::Path;

use serde_json::Value;

use crate::common::{assets, tidemill_json, world};

/// A few steps at 64 pixels.
const SHORT: [&str; 6] =
    ["--set", "train.global_batch=6", "--set", "train.micro_batch=4", "--set", "train.log_every=1"];

fn train(run: &str, settings: &[&str]) -> (i32, Value) {
    let settings = settings.iter().flat_map(|setting| ["--set", *setting]);
    tidemill_json(&["train", run].into_iter().chain(SHORT).chain(settings).collect::<Vec<_>>())
}

fn preprocess(run: &str, settings: &[&str]) {
    let settings = settings.iter().flat_map(|setting| ["--set", *setting]);
    let (code, result) = tidemill_json(&["preprocess", run].into_iter().chain(settings).collect::<Vec<_>>());
    assert_eq!(code, 0, "{result}");
}

#[test]
fn images_of_many_sizes_are_trained_on() {
    let folder = tempfile::tempdir().unwrap();
    let run = world(folder.path(), 96);
    let bucketed = "prepare.crop=bucket";
    preprocess(&run, &[bucketed]);
    let (code, result) = train(&run, &[bucketed, "train.phase=[{resolution = 64, steps = 12}]"]);
    assert_eq!((code, &result["steps"]), (0, &12.into()), "{result}");
    assert!(result["loss"].as_f64().is_some_and(f64::is_finite), "{result}");
}

#[test]
fn datasets_are_mixed_by_phase() {
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let runs = folders.each_ref().map(|folder| world(folder.path(), 64));
    runs.iter().for_each(|run| preprocess(run, &[]));
    let other = folders[1].path().join("out/dataset");
    let mix = format!(
        "train.mix=[{{name = \"own\", repeat = 1}}, {{name = \"other\", dataset = {:?}, repeat = 2.5}}]",
        other.display().to_string()
    );
    let phases =
        "train.phase=[{resolution = 32, steps = 4, mix = {own = {count = 9}}}, {resolution = 64, steps = 4}]";
    let (code, result) = train(&runs[0], &[&mix, phases]);
    assert_eq!((code, &result["steps"]), (0, &8.into()), "{result}");

    let unknown = "train.phase=[{resolution = 32, steps = 4, mix = {others = {count = 9}}}]";
    let (code, result) = train(&runs[0], &[&mix, unknown]);
    assert_eq!(code, 2, "{result}");
    assert!(result["error"]["message"].as_str().unwrap().contains("others"), "{result}");
}

#[test]
fn a_dataset_of_another_text_encoder_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let run = world(folder.path(), 64);
    preprocess(&run, &[]);
    let models = folder.path().join("models");
    copy(&assets(), &models);
    let config = models.join("text_encoder/config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, format!("{text}\n")).unwrap();
    let phase = "train.phase=[{resolution = 64, steps = 2}]";
    let (code, result) = train(&run, &[phase, &format!("models.path={}", models.display())]);
    let message = result["error"]["message"].as_str().unwrap();
    assert_eq!(code, 2, "{message}");
    assert!(message.contains("another text encoder") && !message.contains("VAE"), "{message}");
    assert_eq!(train(&run, &[phase]).0, 0);
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy(&entry.path(), &to),
            false => _ = std::fs::copy(entry.path(), to).unwrap(),
        }
    }
}
