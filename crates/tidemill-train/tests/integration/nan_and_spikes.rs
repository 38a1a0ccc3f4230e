//! Rows that make a loss NaN or a spike: the run stops, skips the step or rolls back, and names the
//! samples.

use std::path::Path;

use tempfile::TempDir;
use tidemill_models::PredictionType;
use tidemill_telemetry::{Event, EventKind, read_events};
use tidemill_train::{Error, NonFiniteAction, SpikeAction, SpikeConfig, TrainOutcome, train};

use crate::common::{
    DatasetFixture, TestObserver, load_weights, losses, temp_dataset, temp_dir, train_quietly, train_spec,
};

/// The row with abnormal latents.
const BAD_ROW: u64 = 7;

/// A dataset in which some rows have constant latents.
fn dataset_with(constant_latents: fn(u64) -> Option<f32>) -> TempDir {
    DatasetFixture { constant_latents, ..DatasetFixture::default() }.write_to_temp_dir()
}

fn dataset_with_nan_row() -> TempDir {
    dataset_with(|row| (row == BAD_ROW).then_some(f32::NAN))
}

fn dataset_of_nan_rows() -> TempDir {
    dataset_with(|_| Some(f32::NAN))
}

#[test]
fn nan_loss_stops_the_run_and_names_the_samples() {
    let (data, output) = (dataset_with_nan_row(), temp_dir());
    let error = train_quietly(train_spec(data.path(), output.path())).unwrap_err();
    let Error::Diverged { samples, loss, .. } = &error else { panic!("{error}") };
    assert!(samples.contains(&BAD_ROW) && loss.is_nan(), "{error}");
}

#[test]
fn steps_with_nan_loss_are_skipped() {
    let (data, output) = (dataset_with_nan_row(), temp_dir());
    let mut spec = train_spec(data.path(), output.path());
    spec.train.not_finite = NonFiniteAction::Skip;
    spec.train.ema.as_mut().unwrap().start_step = 0;
    let mut observer = TestObserver::default();
    let outcome = train(spec, &mut observer).unwrap();
    let skipped = observer.messages_with("is skipped");
    // 40 steps read 320 rows. Each of the 50 rows comes once per epoch.
    assert!(outcome.finished && (5..=8).contains(&outcome.skipped_steps), "{outcome:?}");
    assert_eq!(skipped.len() as u64, outcome.skipped_steps);
    assert!(skipped.iter().all(|message| listed_samples(message).contains(&BAD_ROW)), "{skipped:?}");
    assert_eq!(observer.losses.iter().filter(|loss| loss.is_nan()).count(), skipped.len());
    for averaged in [false, true] {
        assert!(are_weights_finite(output.path(), averaged));
    }
}

#[test]
fn run_ends_after_ten_skipped_steps_in_a_row() {
    let (data, output) = (dataset_of_nan_rows(), temp_dir());
    let mut spec = train_spec(data.path(), output.path());
    spec.train.not_finite = NonFiniteAction::Skip;
    let error = train_quietly(spec).unwrap_err();
    assert!(matches!(error, Error::Diverged { step: 11, .. }), "{error}");
}

#[test]
fn rollback_continues_without_the_nan_row() {
    let (data, output) = (dataset_with_nan_row(), temp_dir());
    let mut spec = train_spec(data.path(), output.path());
    spec.train.not_finite = NonFiniteAction::Rollback;
    spec.checkpoint.every = 2;
    let mut observer = TestObserver::default();
    let outcome = train(spec, &mut observer).unwrap();
    assert!(outcome.finished && outcome.rollbacks >= 4 && outcome.skipped_steps == 0, "{outcome:?}");
    let rolled_back = observer.messages_with("is rolled back");
    assert_eq!(rolled_back.len() as u64, outcome.rollbacks);
    let names_bad_row = |message: &&String| all_samples(output.path(), message).contains(&BAD_ROW);
    assert!(rolled_back.iter().all(names_bad_row), "{rolled_back:?}");
    let events = read_events(output.path()).unwrap();
    assert_eq!(events.len() as u64, outcome.rollbacks);
    let is_rollback = |event: &Event| event.kind == EventKind::Rollback && event.steps_lost > 0;
    assert!(events.iter().all(|event| is_rollback(event) && event.seconds_lost > Some(0.0)), "{events:?}");
    // The file has each step once and in order, and no abnormal step.
    assert!(losses(output.path()).iter().all(|loss| loss.is_finite()));
    assert!(are_weights_finite(output.path(), false));
}

#[test]
fn rollback_without_a_checkpoint_ends_the_run() {
    let (data, output) = (dataset_of_nan_rows(), temp_dir());
    let mut spec = train_spec(data.path(), output.path());
    spec.train.not_finite = NonFiniteAction::Rollback;
    let error = train_quietly(spec).unwrap_err();
    assert!(error.to_string().contains("no checkpoint to roll back to from step 1"), "{error}");
}

/// Trains on a row with latents of 200. The network normalises its input, so its output stays as it
/// is, but its target, the velocity, becomes large.
fn train_with_spikes(action: SpikeAction) -> (TrainOutcome, TestObserver, TempDir) {
    let (data, output) = (dataset_with(|row| (row == BAD_ROW).then_some(200.0)), temp_dir());
    let mut spec = train_spec(data.path(), output.path());
    spec.train.prediction = Some(PredictionType::VPrediction);
    spec.train.spike = Some(SpikeConfig { factor: 4.0, window: 3, action });
    spec.train.phase.truncate(1);
    spec.train.phase[0].steps = 40;
    spec.checkpoint.every = 2;
    let mut observer = TestObserver::default();
    let outcome = train(spec, &mut observer).unwrap();
    assert!(outcome.finished);
    let parts = ["is a spike", "is skipped", "is rolled back"];
    let spikes: Vec<_> = parts.iter().flat_map(|part| observer.messages_with(part)).collect();
    let names_bad_row = |message: &&String| all_samples(output.path(), message).contains(&BAD_ROW);
    assert!(!spikes.is_empty() && spikes.iter().all(names_bad_row), "{spikes:?}");
    (outcome, observer, output)
}

#[test]
fn spikes_are_reported_skipped_or_rolled_back() {
    let (outcome, observer, _) = train_with_spikes(SpikeAction::Report);
    assert_eq!((outcome.skipped_steps, outcome.rollbacks), (0, 0));
    let largest_reported = observer.losses.iter().copied().fold(0f64, f64::max);

    let (outcome, observer, _) = train_with_spikes(SpikeAction::Skip);
    let skipped = observer.messages_with("is skipped").len() as u64;
    assert!(skipped == outcome.skipped_steps && skipped >= 3 && outcome.rollbacks == 0, "{outcome:?}");

    let (outcome, _, output) = train_with_spikes(SpikeAction::Rollback);
    assert!(outcome.rollbacks >= 3 && outcome.skipped_steps == 0, "{outcome:?}");
    let largest = losses(output.path()).into_iter().skip(3).fold(0f64, f64::max);
    println!("largest loss {largest_reported}, {largest} if spikes are rolled back");
    assert!(10.0 * largest < largest_reported);
}

#[test]
fn run_ends_if_losses_stay_spikes() {
    let data = temp_dataset();
    for action in [SpikeAction::Skip, SpikeAction::Rollback] {
        let output = temp_dir();
        let mut spec = train_spec(data.path(), output.path());
        // Nothing is learned, and each loss is compared with the lower ones before it: in the end
        // all losses are spikes.
        spec.train.learning_rate = 1e-12;
        spec.train.spike = Some(SpikeConfig { factor: 1.0001, window: 3, action });
        spec.train.phase[1].steps = 400;
        spec.checkpoint.every = 1;
        let error = train_quietly(spec).unwrap_err();
        let Error::Diverged { loss, samples, .. } = &error else { panic!("{action:?}: {error}") };
        assert!(loss.is_finite() && !samples.is_empty(), "{action:?}: {error}");
    }
}

/// All samples of the step that a message is about, from `anomalies.jsonl`.
fn all_samples(output: &Path, message: &str) -> Vec<u64> {
    let step: u64 = message.split(' ').nth(1).unwrap().parse().unwrap();
    let text = std::fs::read_to_string(output.join("anomalies.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let of_step = lines.filter(|line| line["step"] == step);
    of_step.flat_map(|line| serde_json::from_value::<Vec<u64>>(line["samples"].clone()).unwrap()).collect()
}

/// The samples that a message lists.
fn listed_samples(message: &str) -> Vec<u64> {
    let (_, ids) = message.split_once("sample ids").unwrap();
    ids.split(|c: char| !c.is_ascii_digit()).filter_map(|id| id.parse().ok()).collect()
}

fn are_weights_finite(output: &Path, averaged: bool) -> bool {
    let (_, weights) = load_weights(output, averaged);
    weights.iter().flat_map(|(_, values)| values).all(|value| value.is_finite())
}
