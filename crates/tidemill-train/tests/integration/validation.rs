//! The loss on held-out rows: the same rows and draws each time, whatever the micro-batches, and nothing of it in the training.

use std::path::Path;

use crate::common::{Quiet, ROWS, Rows, dataset, held_out_dataset, job, losses};
use serde_json::Value;
use tidemill_store::stream::single_dataset;
use tidemill_store::{Dataset, DatasetSpec, Split};
use tidemill_train::{
    BatchStream, Error, Phase, StoredDatasets, TrainConfig, TrainSpec, TrainingData, ValidationConfig,
    ValidationSet, train,
};

const SHARE: f64 = 0.3;

fn validating(data: &Path, output: &Path, rows: u64) -> TrainSpec {
    let mut job = job(data, output);
    let datasets = single_dataset(&Dataset::open(data.to_str().unwrap()).unwrap());
    job.validation_set = Some(ValidationSet { datasets, split: Split::Validation });
    job.train.validation = Some(ValidationConfig { every: 8, rows, dataset: None });
    job
}

/// What the lines with a validation have under a name, by step.
fn validations(output: &Path, name: &str) -> Vec<(u64, Option<f64>)> {
    let text = std::fs::read_to_string(output.join("metrics.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let with = lines.filter(|line| line.get("validation_loss").is_some());
    with.map(|line| (line["step"].as_u64().unwrap(), line[name].as_f64())).collect()
}

#[test]
fn it_is_of_the_same_rows_and_draws_each_time() {
    let (data, whole) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    held_out_dataset(data.path(), SHARE);
    let held_out =
        (0..ROWS).filter(|id| Split::from_sample_id(*id, SHARE) == Split::Validation).count() as u64;
    assert!(!held_out.is_multiple_of(8), "the last batch is to be a part of one: {held_out}");
    train(validating(data.path(), whole.path(), 1000), &mut Quiet::default()).unwrap();
    let found = validations(whole.path(), "validation_loss");
    assert_eq!(found.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [8, 16, 24, 32, 40]);
    assert!(found.iter().all(|(_, loss)| loss.is_some_and(f64::is_finite)), "{found:?}");
    let rows = validations(whole.path(), "validation_rows");
    assert!(rows.iter().all(|(_, rows)| *rows == Some(held_out as f64)), "{rows:?}");
    // Averaging begins after step 15.
    let averaged = validations(whole.path(), "validation_ema_loss");
    assert!(averaged[0].1.is_none() && averaged[1..].iter().all(|(_, loss)| loss.is_some()), "{averaged:?}");
    assert_ne!(averaged[4].1, found[4].1);
    // In training they change nothing.
    let without = tempfile::tempdir().unwrap();
    train(job(data.path(), without.path()), &mut Quiet::default()).unwrap();
    assert_eq!(losses(whole.path()), losses(without.path()));
    // Stopped and gone on with, in other micro-batches.
    let halves = tempfile::tempdir().unwrap();
    train(validating(data.path(), halves.path(), 1000), &mut Quiet::stopping_after(20)).unwrap();
    let mut rest = validating(data.path(), halves.path(), 1000);
    rest.train.micro_batch = 3;
    train(rest, &mut Quiet::default()).unwrap();
    let again = validations(halves.path(), "validation_loss");
    assert_eq!(found[..2], again[..2], "bit for bit");
    for ((_, a), (_, b)) in found.iter().zip(&again) {
        let (a, b) = (a.unwrap(), b.unwrap());
        assert!((a / b - 1.0).abs() < 1e-3, "{found:?} {again:?}");
    }
}

#[test]
fn fewer_rows_are_the_first_of_them() {
    let data = tempfile::tempdir().unwrap();
    held_out_dataset(data.path(), SHARE);
    let at_first = |rows| {
        let output = tempfile::tempdir().unwrap();
        let mut job = validating(data.path(), output.path(), rows);
        job.train.phase.truncate(1);
        job.train.phase[0].steps = 8;
        train(job, &mut Quiet::default()).unwrap();
        let of = |name| validations(output.path(), name)[0].1.unwrap();
        (of("validation_rows"), of("validation_loss"))
    };
    assert_eq!(at_first(5), at_first(5));
    assert_eq!((at_first(5).0, at_first(9).0), (5.0, 9.0));
    assert_ne!(at_first(5).1, at_first(9).1);
}

/// The first validation's rows, loss and losses by timestep.
fn first(output: &Path) -> (f64, f64, Vec<Option<f64>>) {
    let text = std::fs::read_to_string(output.join("metrics.jsonl")).unwrap();
    let mut lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let line = lines.find(|line| line.get("validation_loss").is_some()).unwrap();
    let tenths = line["validation_loss_by_timestep"].as_array().unwrap().iter().map(Value::as_f64);
    (line["validation_rows"].as_f64().unwrap(), line["validation_loss"].as_f64().unwrap(), tenths.collect())
}

#[test]
fn images_of_all_shapes_take_part_whatever_the_batches() {
    let data = tempfile::tempdir().unwrap();
    Rows { share: 0.6, wide: true, ..Rows::default() }.write(data.path());
    let held_out = (0..ROWS).filter(|id| Split::from_sample_id(*id, 0.6) == Split::Validation).count() as u64;
    let validated = |global_batch, rows| {
        let output = tempfile::tempdir().unwrap();
        let mut job = validating(data.path(), output.path(), rows);
        job.train.phase.truncate(1);
        job.train.phase[0].steps = 8;
        // The network stays what it is.
        (job.train.global_batch, job.train.micro_batch, job.train.learning_rate) = (global_batch, 4, 1e-12);
        train(job, &mut Quiet::default()).unwrap();
        first(output.path())
    };
    for rows in [11, 1000] {
        let (few, many) = (validated(4, rows), validated(64, rows));
        assert_eq!((few.0, many.0), (rows.min(held_out) as f64, few.0));
        assert!((few.1 / many.1 - 1.0).abs() < 1e-4, "{few:?} {many:?}");
        assert!(few.2.iter().all(Option::is_some), "timesteps are spread over all of the rows: {few:?}");
        let alike = |(a, b): (&Option<f64>, &Option<f64>)| (a.unwrap() / b.unwrap() - 1.0).abs() < 1e-4;
        assert!(few.2.iter().zip(&many.2).all(alike), "{few:?} {many:?}");
    }
}

#[test]
fn a_run_goes_on_with_the_rows_that_it_began_with() {
    let (data, output, whole) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    held_out_dataset(data.path(), SHARE);
    train(validating(data.path(), whole.path(), 1000), &mut Quiet::default()).unwrap();
    train(validating(data.path(), output.path(), 1000), &mut Quiet::stopping_after(20)).unwrap();
    // Meanwhile somebody preprocesses: more rows, other ones held out, another shape.
    Rows { count: 2 * ROWS, share: 0.5, wide: true, ..Rows::default() }.write(data.path());
    train(validating(data.path(), output.path(), 1000), &mut Quiet::default()).unwrap();
    assert_eq!(losses(output.path()), losses(whole.path()));
    for name in ["validation_loss", "validation_rows"] {
        assert_eq!(validations(output.path(), name), validations(whole.path(), name), "{name}");
    }
    // A run that begins now takes the new ones.
    let new = tempfile::tempdir().unwrap();
    train(validating(data.path(), new.path(), 1000), &mut Quiet::stopping_after(8)).unwrap();
    assert!(first(new.path()).0 > first(whole.path()).0);
}

/// A dataset that has nothing at 128 pixels, as far as it says.
#[derive(Debug)]
struct Fewer(StoredDatasets);

impl TrainingData for Fewer {
    fn spec(&self) -> Result<DatasetSpec, Error> {
        let mut spec = self.0.spec()?;
        spec.latents.retain(|bucket, _| bucket.resolution != 128);
        Ok(spec)
    }

    fn empty_caption(&self) -> &[u8] {
        self.0.empty_caption()
    }

    fn identity(&self) -> (&'static str, Value) {
        self.0.identity()
    }

    fn check_phases(&self, train: &TrainConfig) -> Result<(), Error> {
        self.0.check_phases(train)
    }

    fn open_stream(&self, phase: &Phase<'_>, state: Option<&Value>) -> Result<Box<dyn BatchStream>, Error> {
        self.0.open_stream(phase, state)
    }
}

#[test]
fn held_out_rows_of_sizes_that_are_not_trained_on_are_refused_before_the_first_step() {
    let (data, output) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    held_out_dataset(data.path(), 0.4);
    let mut job = validating(data.path(), output.path(), 10);
    job.data = Box::new(Fewer(StoredDatasets(single_dataset(
        &Dataset::open(data.path().to_str().unwrap()).unwrap(),
    ))));
    let error = train(job, &mut Quiet::default()).unwrap_err().to_string();
    assert!(error.contains("validation rows of 128, but the training rows have no such bucket"), "{error}");
}

#[test]
fn a_run_that_holds_nothing_out_is_refused_before_the_first_step() {
    let (data, output) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    dataset(data.path());
    let error =
        train(validating(data.path(), output.path(), 10), &mut Quiet::default()).unwrap_err().to_string();
    assert!(error.contains("has no validation rows") && error.contains("set [validation] share"), "{error}");
    let mut nothing = job(data.path(), output.path());
    nothing.train.validation = Some(ValidationConfig::default());
    let error = train(nothing, &mut Quiet::default()).unwrap_err().to_string();
    assert!(error.contains("train.validation"), "{error}");
    assert!(!output.path().join("metrics.jsonl").exists());
}
