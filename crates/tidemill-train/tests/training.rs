//! Training as a user sees it: a run that is stopped, killed or damaged goes on exactly where it was, and a run that
//! does not fit its checkpoint is refused.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail by panicking")]

mod common;

use common::{Quiet, dataset, job, losses, values};
use std::path::Path;
use tidemill_store::stream::Unreadable;
use tidemill_train::{Checkpoints, EmaConfig, Error, Precision, Timesteps, TrainConfig, train};

/// Phases of 12 and 28 steps, at two resolutions.
const STEPS: u64 = 40;

#[test]
fn the_losses_after_a_resume_are_those_of_the_uninterrupted_run() {
    let (data, whole, halves) = (dir(), dir(), dir());
    dataset(data.path());
    let outcome = train(job(data.path(), whole.path()), &mut Quiet::default()).unwrap();
    assert!(outcome.finished && outcome.resumed_at == 0);

    // Stopped in the first phase, then killed in the second: its last checkpoint is of step 20.
    train(job(data.path(), halves.path()), &mut Quiet::stopping_after(7)).unwrap();
    let dying = || train(job(data.path(), halves.path()), &mut Quiet::dying_after(26));
    assert!(std::panic::catch_unwind(dying).is_err());
    let outcome = train(job(data.path(), halves.path()), &mut Quiet::default()).unwrap();
    assert_eq!((outcome.resumed_at, outcome.steps), (20, STEPS));

    let (expected, got) = (losses(whole.path()), losses(halves.path()));
    assert_eq!(expected.len() as u64, STEPS);
    assert_eq!(expected, got, "every loss, bit for bit");
    assert_eq!(weights(whole.path(), false), weights(halves.path(), false));
    assert_eq!(weights(whole.path(), true), weights(halves.path(), true), "the average too");
    assert_ne!(weights(whole.path(), true), weights(whole.path(), false));
}

#[test]
fn a_run_resumes_between_two_phases() {
    let (data, whole, halves) = (dir(), dir(), dir());
    dataset(data.path());
    train(job(data.path(), whole.path()), &mut Quiet::default()).unwrap();
    let job = || {
        let mut job = job(data.path(), halves.path());
        job.checkpoint.every = 12;
        job
    };
    assert!(std::panic::catch_unwind(|| train(job(), &mut Quiet::dying_after(14))).is_err());
    assert_eq!(train(job(), &mut Quiet::default()).unwrap().resumed_at, 12);
    assert_eq!(losses(whole.path()), losses(halves.path()));
}

#[test]
fn a_damaged_checkpoint_is_passed_over_for_the_one_before() {
    let (data, run) = (dir(), dir());
    dataset(data.path());
    train(job(data.path(), run.path()), &mut Quiet::default()).unwrap();
    let expected = losses(run.path());
    let folder = run.path().join("checkpoints/step-00000040");
    let attempt = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()).find(|p| p.is_dir());
    let shard = attempt.unwrap().join("rank-0-of-1.safetensors");
    let mut bytes = std::fs::read(&shard).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&shard, bytes).unwrap();
    let outcome = train(job(data.path(), run.path()), &mut Quiet::default()).unwrap();
    assert_eq!((outcome.resumed_at, outcome.steps), (30, STEPS));
    assert_eq!(losses(run.path()), expected);
    // It has been replaced: the next run has nothing left to do.
    let outcome = train(job(data.path(), run.path()), &mut Quiet::default()).unwrap();
    assert_eq!((outcome.resumed_at, outcome.steps), (STEPS, STEPS));
}

#[test]
fn every_line_of_metrics_has_its_rate() {
    let (data, run) = (dir(), dir());
    dataset(data.path());
    let mut job = job(data.path(), run.path());
    // Steps 9 and 10, 25 to 28 and others end up in lines of a checkpoint or of a phase's end.
    job.train.log_every = 4;
    train(job, &mut Quiet::default()).unwrap();
    let rates = common::metric(run.path(), "images_per_second");
    assert_eq!(rates.len() as u64, STEPS);
    assert!(rates.iter().all(|rate| *rate > 0.0), "{rates:?}");
}

#[test]
fn losses_are_told_by_timestep_before_weights() {
    let (data, alike, weighted) = (dir(), dir(), dir());
    dataset(data.path());
    let tenths = |output: &Path, min_snr_gamma, micro_batch| -> Vec<(f64, Vec<f64>)> {
        let mut job = job(data.path(), output);
        job.train = TrainConfig { timesteps: Timesteps::Stratified, min_snr_gamma, micro_batch, ..job.train };
        job.train.phase.truncate(1);
        train(job, &mut Quiet::default()).unwrap();
        let text = std::fs::read_to_string(output.join("metrics.jsonl")).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let told = |line: &serde_json::Value| {
            line["loss_by_timestep"]
                .as_array()
                .unwrap()
                .iter()
                .filter_map(serde_json::Value::as_f64)
                .collect()
        };
        lines.map(|line| (line["loss"].as_f64().unwrap(), told(&line))).collect()
    };
    // Eight rows an eighth of the timesteps apart are in eight of the tenths.
    for (loss, tenths) in tenths(alike.path(), None, 3) {
        let mean = tenths.iter().sum::<f64>() / 8.0;
        assert!(tenths.len() == 8 && (loss - mean).abs() < 1e-5 * mean, "{loss} {tenths:?}");
    }
    for (loss, tenths) in tenths(weighted.path(), Some(1.0), 8) {
        assert!(loss < tenths.iter().sum::<f64>() / 8.0, "{loss} {tenths:?}");
    }
}

#[test]
fn checkpoints_of_another_run_are_refused_by_name() {
    let (data, run) = (dir(), dir());
    dataset(data.path());
    train(job(data.path(), run.path()), &mut Quiet::stopping_after(3)).unwrap();
    let mut other = job(data.path(), run.path());
    other.seed += 1;
    let error = train(other, &mut Quiet::default()).unwrap_err();
    assert!(matches!(error, Error::OtherRun { .. }), "{error}");
    assert!(error.to_string().contains("another seed"), "{error}");
}

#[test]
fn what_the_dataset_lacks_is_refused_before_the_first_step() {
    let (data, run) = (dir(), dir());
    dataset(data.path());
    let mut other = job(data.path(), run.path());
    other.train.phase[0].resolution = 256;
    let message = train(other, &mut Quiet::default()).unwrap_err().to_string();
    assert!(message.contains("256") && message.contains("64, 128"), "{message}");
    assert!(!run.path().join("metrics.jsonl").exists());
}

#[test]
fn rows_that_cannot_be_read_end_a_run_or_are_counted() {
    let (data, stopped, skipping) = (dir(), dir(), dir());
    dataset(data.path());
    let unit = std::fs::read_dir(data.path().join("data")).unwrap().next().unwrap().unwrap().path();
    let attempt = std::fs::read_dir(unit).unwrap().next().unwrap().unwrap().path();
    let text = attempt.join("text.parquet");
    let mut bytes = std::fs::read(&text).unwrap();
    let tensor = values(0, 60);
    let at = bytes.windows(tensor.len()).position(|window| window == tensor).unwrap();
    bytes[at] ^= 1;
    std::fs::write(&text, bytes).unwrap();
    let error = train(job(data.path(), stopped.path()), &mut Quiet::default()).unwrap_err().to_string();
    assert!(error.contains("text.parquet") && error.contains("wrong checksum of row"), "{error}");

    let mut job = job(data.path(), skipping.path());
    job.train.stream.unreadable = Unreadable::Skip;
    let outcome = train(job, &mut Quiet::default()).unwrap();
    assert!(outcome.finished && (1..STEPS).contains(&outcome.skipped_rows), "{outcome:?}");
}

#[test]
fn micro_batches_change_nothing_but_rounding() {
    let (data, whole, parts) = (dir(), dir(), dir());
    dataset(data.path());
    train(job(data.path(), whole.path()), &mut Quiet::default()).unwrap();
    let mut job = job(data.path(), parts.path());
    job.train.micro_batch = 3;
    train(job, &mut Quiet::default()).unwrap();
    for (a, b) in losses(whole.path()).iter().zip(losses(parts.path())) {
        assert!((a - b).abs() <= 2e-3 * a.abs(), "{a} {b}");
    }
}

#[test]
fn bf16_learns_as_f32_does() {
    let data = dir();
    dataset(data.path());
    let ends = [Precision::F32, Precision::Bf16].map(|precision| {
        let run = dir();
        let mut job = job(data.path(), run.path());
        job.train.precision = precision;
        job.train.learning_rate = 5e-3;
        job.train.phase.truncate(1);
        job.train.phase[0].steps = 80;
        job.train.ema = Some(EmaConfig::default());
        train(job, &mut Quiet::default()).unwrap();
        let losses = losses(run.path());
        let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
        (mean(&losses[..10]), mean(&losses[70..]))
    });
    println!("first and last 10 losses, f32 and bf16: {ends:?}");
    for (first, last) in ends {
        assert!(last < 0.9 * first, "{first} -> {last}");
    }
    assert!((ends[0].1 / ends[1].1 - 1.0).abs() < 0.05, "{ends:?}");
}

fn weights(output: &Path, averaged: bool) -> Vec<(String, Vec<f32>)> {
    let checkpoints = Checkpoints::open(&common::checkpoints(), output).unwrap();
    let (step, mut weights) = checkpoints.weights(averaged).unwrap();
    assert_eq!(step, STEPS);
    weights.sort_by(|a, b| a.0.cmp(&b.0));
    weights.into_iter().map(|(name, t)| (name, Vec::try_from(t.reshape([-1])).unwrap())).collect()
}

fn dir() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}
