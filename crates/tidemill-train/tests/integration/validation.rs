//! The validation loss: it uses the same rows and draws each time, whatever the micro-batches, and
//! has no influence on training.

use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;
use tidemill_store::{DatasetSpec, Split};
use tidemill_train::{
    BatchStream, Error, Phase, StoredDatasets, TrainConfig, TrainSpec, TrainingData, ValidationConfig,
    ValidationSet, train,
};

use crate::common::{
    DatasetFixture, ROWS, TestObserver, losses, metrics_lines, stored_datasets, temp_dataset, temp_dir,
    train_quietly, train_spec,
};

const VALIDATION_SHARE: f64 = 0.3;

fn dataset_with_validation_rows(validation_share: f64) -> TempDir {
    DatasetFixture { validation_share, ..DatasetFixture::default() }.write_to_temp_dir()
}

fn count_validation_rows(validation_share: f64) -> u64 {
    let is_validation = |id: &u64| Split::from_sample_id(*id, validation_share) == Split::Validation;
    (0..ROWS).filter(is_validation).count() as u64
}

/// A run with a validation of up to `rows` rows after every eighth step.
fn validating_spec(data: &Path, output: &Path, rows: u64) -> TrainSpec {
    let mut spec = train_spec(data, output);
    let datasets = stored_datasets(data).0;
    spec.validation_set = Some(ValidationSet { datasets, split: Split::Validation });
    spec.train.validation = Some(ValidationConfig { every: 8, rows, dataset: None });
    spec
}

/// The lines of metrics that have a validation loss.
fn validation_lines(output: &Path) -> Vec<Value> {
    let mut lines = metrics_lines(output);
    lines.retain(|line| line.get("validation_loss").is_some());
    lines
}

/// One number from each line with a validation loss, with its step.
fn validation_metric(output: &Path, name: &str) -> Vec<(u64, Option<f64>)> {
    let lines = validation_lines(output);
    lines.iter().map(|line| (line["step"].as_u64().unwrap(), line[name].as_f64())).collect()
}

/// The result of the first validation of a run.
#[derive(Debug)]
struct FirstValidation {
    rows: f64,
    loss: f64,
    by_timestep: Vec<Option<f64>>,
}

fn first_validation(output: &Path) -> FirstValidation {
    let line = validation_lines(output).remove(0);
    let tenths = line["validation_loss_by_timestep"].as_array().unwrap();
    FirstValidation {
        rows: line["validation_rows"].as_f64().unwrap(),
        loss: line["validation_loss"].as_f64().unwrap(),
        by_timestep: tenths.iter().map(Value::as_f64).collect(),
    }
}

#[test]
fn validation_uses_the_same_rows_and_draws_each_time() {
    let (data, output) = (dataset_with_validation_rows(VALIDATION_SHARE), temp_dir());
    let expected_rows = count_validation_rows(VALIDATION_SHARE);
    assert!(!expected_rows.is_multiple_of(8), "the last batch should be incomplete: {expected_rows} rows");
    train_quietly(validating_spec(data.path(), output.path(), 1000)).unwrap();
    let found = validation_metric(output.path(), "validation_loss");
    assert_eq!(found.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [8, 16, 24, 32, 40]);
    assert!(found.iter().all(|(_, loss)| loss.is_some_and(f64::is_finite)), "{found:?}");
    let rows = validation_metric(output.path(), "validation_rows");
    assert!(rows.iter().all(|(_, rows)| *rows == Some(expected_rows as f64)), "{rows:?}");
    // Averaging starts after step 15.
    let averaged = validation_metric(output.path(), "validation_ema_loss");
    assert!(averaged[0].1.is_none() && averaged[1..].iter().all(|(_, loss)| loss.is_some()), "{averaged:?}");
    assert_ne!(averaged[4].1, found[4].1);
    // Validation does not change training.
    let without = temp_dir();
    train_quietly(train_spec(data.path(), without.path())).unwrap();
    assert_eq!(losses(output.path()), losses(without.path()));
    // The losses are the same if the run is stopped and resumed with other micro-batches.
    let resumed = temp_dir();
    let first_half = validating_spec(data.path(), resumed.path(), 1000);
    train(first_half, &mut TestObserver::stopping_after(20)).unwrap();
    let mut second_half = validating_spec(data.path(), resumed.path(), 1000);
    second_half.train.micro_batch = 3;
    train_quietly(second_half).unwrap();
    let again = validation_metric(resumed.path(), "validation_loss");
    assert_eq!(found[..2], again[..2], "bit for bit");
    for ((_, a), (_, b)) in found.iter().zip(&again) {
        let (a, b) = (a.unwrap(), b.unwrap());
        assert!((a / b - 1.0).abs() < 1e-3, "{found:?} {again:?}");
    }
}

/// Trains for eight steps, after `change`, and returns the validation at the end.
fn validate_once(data: &Path, rows: u64, change: impl FnOnce(&mut TrainConfig)) -> FirstValidation {
    let output = temp_dir();
    let mut spec = validating_spec(data, output.path(), rows);
    spec.train.phase.truncate(1);
    spec.train.phase[0].steps = 8;
    change(&mut spec.train);
    train_quietly(spec).unwrap();
    first_validation(output.path())
}

#[test]
fn smaller_row_limit_uses_the_first_rows() {
    let data = dataset_with_validation_rows(VALIDATION_SHARE);
    let validate = |rows| {
        let FirstValidation { rows, loss, .. } = validate_once(data.path(), rows, |_| ());
        (rows, loss)
    };
    assert_eq!(validate(5), validate(5));
    assert_eq!((validate(5).0, validate(9).0), (5.0, 9.0));
    assert_ne!(validate(5).1, validate(9).1);
}

#[test]
fn images_of_all_buckets_are_validated_whatever_the_batch_size() {
    let share = 0.6;
    let dataset =
        DatasetFixture { validation_share: share, has_wide_images: true, ..DatasetFixture::default() };
    let data = dataset.write_to_temp_dir();
    let validate = |global_batch, rows| {
        validate_once(data.path(), rows, |train| {
            // With this learning rate the network stays what it is.
            (train.global_batch, train.micro_batch, train.learning_rate) = (global_batch, 4, 1e-12);
        })
    };
    for rows in [11, 1000] {
        let (small, large) = (validate(4, rows), validate(64, rows));
        assert_eq!((small.rows, large.rows), (rows.min(count_validation_rows(share)) as f64, small.rows));
        assert!((small.loss / large.loss - 1.0).abs() < 1e-4, "{small:?} {large:?}");
        assert!(
            small.by_timestep.iter().all(Option::is_some),
            "the timesteps are spread over all rows: {small:?}"
        );
        let is_close = |(a, b): (&Option<f64>, &Option<f64>)| (a.unwrap() / b.unwrap() - 1.0).abs() < 1e-4;
        assert!(small.by_timestep.iter().zip(&large.by_timestep).all(is_close), "{small:?} {large:?}");
    }
}

#[test]
fn resumed_run_keeps_the_rows_it_started_with() {
    let (data, output, uninterrupted) =
        (dataset_with_validation_rows(VALIDATION_SHARE), temp_dir(), temp_dir());
    train_quietly(validating_spec(data.path(), uninterrupted.path(), 1000)).unwrap();
    let first_half = validating_spec(data.path(), output.path(), 1000);
    train(first_half, &mut TestObserver::stopping_after(20)).unwrap();
    // Meanwhile the dataset gets more rows, another validation split, and another bucket.
    DatasetFixture {
        count: 2 * ROWS,
        validation_share: 0.5,
        has_wide_images: true,
        ..DatasetFixture::default()
    }
    .write(data.path());
    train_quietly(validating_spec(data.path(), output.path(), 1000)).unwrap();
    assert_eq!(losses(output.path()), losses(uninterrupted.path()));
    for name in ["validation_loss", "validation_rows"] {
        let metric = |output: &TempDir| validation_metric(output.path(), name);
        assert_eq!(metric(&output), metric(&uninterrupted), "{name}");
    }
    // A new run uses the new rows.
    let new = temp_dir();
    let new_run = validating_spec(data.path(), new.path(), 1000);
    train(new_run, &mut TestObserver::stopping_after(8)).unwrap();
    assert!(first_validation(new.path()).rows > first_validation(uninterrupted.path()).rows);
}

/// A dataset that claims to have nothing at 128 pixels.
#[derive(Debug)]
struct WithoutLargeBuckets(StoredDatasets);

impl TrainingData for WithoutLargeBuckets {
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
fn validation_rows_of_untrained_buckets_are_refused_before_the_first_step() {
    let (data, output) = (dataset_with_validation_rows(0.4), temp_dir());
    let mut spec = validating_spec(data.path(), output.path(), 10);
    spec.data = Box::new(WithoutLargeBuckets(stored_datasets(data.path())));
    let error = train_quietly(spec).unwrap_err().to_string();
    assert!(error.contains("validation rows of 128, but the training rows have no such bucket"), "{error}");
}

#[test]
fn validation_without_rows_is_refused_before_the_first_step() {
    let (data, output) = (temp_dataset(), temp_dir());
    let error = train_quietly(validating_spec(data.path(), output.path(), 10)).unwrap_err().to_string();
    assert!(error.contains("has no validation rows") && error.contains("set [validation] share"), "{error}");
    let mut without_set = train_spec(data.path(), output.path());
    without_set.train.validation = Some(ValidationConfig::default());
    let error = train_quietly(without_set).unwrap_err().to_string();
    assert!(error.contains("train.validation"), "{error}");
    assert!(!output.path().join("metrics.jsonl").exists());
}
