//! Rows that spoil a step: what stops, what goes on, what is rolled back, and what is said.

use crate::common::{Quiet, job, spoilt_dataset};
use std::path::Path;
use tidemill_models::PredictionType;
use tidemill_train::{
    Checkpoints, Error, NonFiniteAction, Observer, SpikeAction, SpikeConfig, StepMetrics, TrainOutcome, train,
};

/// The row that is spoilt.
const BAD: u64 = 7;

fn spoilt(rows: fn(u64) -> Option<f32>) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    spoilt_dataset(folder.path(), rows);
    folder
}

/// Hears what is said, and what the losses are.
#[derive(Default)]
struct Listener {
    heard: Vec<String>,
    losses: Vec<f64>,
}

impl Observer for Listener {
    fn on_step(&mut self, metrics: &StepMetrics, _total: u64) {
        self.losses.push(metrics.loss);
    }

    fn log(&mut self, message: &str) {
        self.heard.push(message.into());
    }

    fn should_stop(&self) -> bool {
        false
    }
}

#[test]
fn a_spoilt_row_stops_a_run_and_is_named() {
    let (data, output) = (spoilt(|row| (row == BAD).then_some(f32::NAN)), tempfile::tempdir().unwrap());
    let error = train(job(data.path(), output.path()), &mut Quiet::default()).unwrap_err();
    let Error::Diverged { samples, loss, .. } = &error else { panic!("{error}") };
    assert!(samples.contains(&BAD) && loss.is_nan(), "{error}");
}

#[test]
fn steps_with_a_spoilt_row_are_left_out() {
    let (data, output) = (spoilt(|row| (row == BAD).then_some(f32::NAN)), tempfile::tempdir().unwrap());
    let mut job = job(data.path(), output.path());
    job.train.not_finite = NonFiniteAction::Skip;
    job.train.ema.as_mut().unwrap().start_step = 0;
    let mut listener = Listener::default();
    let outcome = train(job, &mut listener).unwrap();
    let left_out: Vec<_> = listener.heard.iter().filter(|said| said.contains("is skipped")).collect();
    // 320 rows of 50, each once an epoch.
    assert!(outcome.finished && (5..=8).contains(&outcome.skipped_steps), "{outcome:?}");
    assert_eq!(left_out.len() as u64, outcome.skipped_steps);
    assert!(left_out.iter().all(|said| named(said).contains(&BAD)), "{left_out:?}");
    assert_eq!(listener.losses.iter().filter(|loss| loss.is_nan()).count(), left_out.len());
    for averaged in [false, true] {
        assert!(weights(output.path(), averaged).iter().all(|value| value.is_finite()));
    }
}

#[test]
fn a_run_of_nothing_but_spoilt_rows_ends() {
    let (data, output) = (spoilt(|_| Some(f32::NAN)), tempfile::tempdir().unwrap());
    let mut job = job(data.path(), output.path());
    job.train.not_finite = NonFiniteAction::Skip;
    let error = train(job, &mut Quiet::default()).unwrap_err();
    assert!(matches!(error, Error::Diverged { step: 11, .. }), "{error}");
}

#[test]
fn a_run_goes_back_from_a_spoilt_row_and_on_without_it() {
    let (data, output) = (spoilt(|row| (row == BAD).then_some(f32::NAN)), tempfile::tempdir().unwrap());
    let mut job = job(data.path(), output.path());
    job.train.not_finite = NonFiniteAction::Rollback;
    job.checkpoint.every = 2;
    let mut listener = Listener::default();
    let outcome = train(job, &mut listener).unwrap();
    assert!(outcome.finished && outcome.rollbacks >= 4 && outcome.skipped_steps == 0, "{outcome:?}");
    let told: Vec<_> = listener.heard.iter().filter(|said| said.contains("is rolled back")).collect();
    assert_eq!(told.len() as u64, outcome.rollbacks);
    assert!(told.iter().all(|said| all_samples(output.path(), said).contains(&BAD)), "{told:?}");
    // Every step once and in order, and none of them spoilt.
    assert!(crate::common::losses(output.path()).iter().all(|loss| loss.is_finite()));
    assert!(weights(output.path(), false).iter().all(|value| value.is_finite()));
}

#[test]
fn a_run_that_cannot_get_past_a_step_ends() {
    let (data, output) = (spoilt(|_| Some(f32::NAN)), tempfile::tempdir().unwrap());
    let mut job = job(data.path(), output.path());
    job.train.not_finite = NonFiniteAction::Rollback;
    let error = train(job, &mut Quiet::default()).unwrap_err();
    assert!(error.to_string().contains("none to roll back to from step 1"), "{error}");
}

/// Latents of 200 leave the network's output as it is, for it normalises them, but not the velocity that it should give.
fn with_spikes(action: SpikeAction) -> (TrainOutcome, Listener, tempfile::TempDir) {
    let (data, output) = (spoilt(|row| (row == BAD).then_some(200.0)), tempfile::tempdir().unwrap());
    let mut job = job(data.path(), output.path());
    job.train.prediction = Some(PredictionType::VPrediction);
    job.train.spike = Some(SpikeConfig { factor: 4.0, window: 3, action });
    job.train.phase.truncate(1);
    job.train.phase[0].steps = 40;
    job.checkpoint.every = 2;
    let mut listener = Listener::default();
    let outcome = train(job, &mut listener).unwrap();
    assert!(outcome.finished);
    let told =
        |said: &&String| ["is a spike", "is skipped", "is rolled back"].iter().any(|t| said.contains(t));
    let told: Vec<_> = listener.heard.iter().filter(told).collect();
    assert!(
        !told.is_empty() && told.iter().all(|said| all_samples(output.path(), said).contains(&BAD)),
        "{told:?}"
    );
    (outcome, listener, output)
}

#[test]
fn spikes_are_reported_left_out_or_gone_back_from() {
    let (outcome, listener, _) = with_spikes(SpikeAction::Report);
    assert_eq!((outcome.skipped_steps, outcome.rollbacks), (0, 0));
    let reported = listener.losses.iter().fold(0f64, |most, loss| most.max(*loss));

    let (outcome, listener, _) = with_spikes(SpikeAction::Skip);
    let left_out = listener.heard.iter().filter(|said| said.contains("is skipped")).count() as u64;
    assert!(left_out == outcome.skipped_steps && left_out >= 3 && outcome.rollbacks == 0, "{outcome:?}");

    let (outcome, _, output) = with_spikes(SpikeAction::Rollback);
    assert!(outcome.rollbacks >= 3 && outcome.skipped_steps == 0, "{outcome:?}");
    let most = crate::common::losses(output.path()).into_iter().skip(3).fold(0f64, f64::max);
    println!("largest loss {reported}, {most} where spikes are gone back from");
    assert!(10.0 * most < reported);
}

#[test]
fn a_run_whose_losses_stay_too_large_ends() {
    let data = spoilt(|_| None);
    for action in [SpikeAction::Skip, SpikeAction::Rollback] {
        let output = tempfile::tempdir().unwrap();
        let mut job = job(data.path(), output.path());
        // Nothing is learnt, and what is less than before is what is compared with: in the end all are larger.
        job.train.learning_rate = 1e-12;
        job.train.spike = Some(SpikeConfig { factor: 1.0001, window: 3, action });
        job.train.phase[1].steps = 400;
        job.checkpoint.every = 1;
        let error = train(job, &mut Quiet::default()).unwrap_err();
        let Error::Diverged { loss, samples, .. } = &error else { panic!("{action:?}: {error}") };
        assert!(loss.is_finite() && !samples.is_empty(), "{action:?}: {error}");
    }
}

/// The samples of the step that a message is about.
fn all_samples(output: &Path, said: &str) -> Vec<u64> {
    let step: u64 = said.split(' ').nth(1).unwrap().parse().unwrap();
    let text = std::fs::read_to_string(output.join("anomalies.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let of_step = lines.filter(|line| line["step"] == step);
    of_step.flat_map(|line| serde_json::from_value::<Vec<u64>>(line["samples"].clone()).unwrap()).collect()
}

/// The samples that a message names.
fn named(said: &str) -> Vec<u64> {
    let (_, ids) = said.split_once("sample ids").unwrap();
    ids.split(|c: char| !c.is_ascii_digit()).filter_map(|id| id.parse().ok()).collect()
}

fn weights(output: &Path, averaged: bool) -> Vec<f32> {
    let checkpoints = Checkpoints::open(&crate::common::checkpoints(), output).unwrap();
    let (_, weights) = checkpoints.load_latest_weights(averaged).unwrap();
    weights.into_iter().flat_map(|(_, tensor)| Vec::<f32>::try_from(tensor.flatten(0, -1)).unwrap()).collect()
}
