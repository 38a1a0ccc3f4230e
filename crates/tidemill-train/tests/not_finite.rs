//! Rows that spoil a step: what stops, what goes on, and what is said.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use common::{Quiet, job, spoilt_dataset};
use std::path::Path;
use tidemill_train::{Checkpoints, Error, NotFinite, Observer, StepMetrics, train};

/// The row that is spoilt.
const BAD: u64 = 7;

fn spoilt(rows: fn(u64) -> bool) -> tempfile::TempDir {
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
    fn step(&mut self, metrics: &StepMetrics, _total: u64) {
        self.losses.push(metrics.loss);
    }

    fn event(&mut self, message: &str) {
        self.heard.push(message.into());
    }

    fn stop(&self) -> bool {
        false
    }
}

#[test]
fn a_spoilt_row_stops_a_run_and_is_named() {
    let (data, output) = (spoilt(|row| row == BAD), tempfile::tempdir().unwrap());
    let error = train(job(data.path(), output.path()), &mut Quiet::default()).unwrap_err();
    let Error::Diverged { samples, loss, .. } = &error else { panic!("{error}") };
    assert!(samples.contains(&BAD) && loss.is_nan(), "{error}");
}

#[test]
fn steps_with_a_spoilt_row_are_left_out() {
    let (data, output) = (spoilt(|row| row == BAD), tempfile::tempdir().unwrap());
    let mut job = job(data.path(), output.path());
    job.train.not_finite = NotFinite::Skip;
    job.train.ema.as_mut().unwrap().start_step = 0;
    let mut listener = Listener::default();
    let outcome = train(job, &mut listener).unwrap();
    let left_out: Vec<_> = listener.heard.iter().filter(|said| said.contains("is left out")).collect();
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
    let (data, output) = (spoilt(|_| true), tempfile::tempdir().unwrap());
    let mut job = job(data.path(), output.path());
    job.train.not_finite = NotFinite::Skip;
    let error = train(job, &mut Quiet::default()).unwrap_err();
    assert!(matches!(error, Error::Diverged { step: 11, .. }), "{error}");
}

/// The samples that a message names.
fn named(said: &str) -> Vec<u64> {
    let (_, ids) = said.split_once("sample ids").unwrap();
    ids.split(|c: char| !c.is_ascii_digit()).filter_map(|id| id.parse().ok()).collect()
}

fn weights(output: &Path, averaged: bool) -> Vec<f32> {
    let checkpoints = Checkpoints::open(&common::checkpoints(), output).unwrap();
    let (_, weights) = checkpoints.weights(averaged).unwrap();
    weights.into_iter().flat_map(|(_, tensor)| Vec::<f32>::try_from(tensor.flatten(0, -1)).unwrap()).collect()
}
