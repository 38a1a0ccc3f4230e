//! Training data that is slow, incomplete or damaged.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tidemill_io::{Limits, store};
use tidemill_store::DatasetSpec;
use tidemill_store::stream::{Batch, UnreadableRows};
use tidemill_testing::S3Server;
use tidemill_train::{
    Activity, BatchStream, Error, Observer, Phase, StepMetrics, StoredDatasets, TrainConfig, TrainSpec,
    TrainingData, train,
};

use crate::checkpoint_writing::AfterStep;
use crate::common::{
    DatasetFixture, STEPS, losses, metric, random_f16, stored_datasets, temp_dataset, temp_dir,
    train_quietly, train_spec,
};

#[test]
fn long_wait_for_data_is_reported() {
    let output = temp_dir();
    let server = S3Server::start(&["late"]);
    store::connect("s3://late", &server.settings(), Limits::default()).unwrap();
    let data = Path::new("s3://late/dataset");
    DatasetFixture::default().write(data);
    let is_stall = |message: &String| message.contains("has waited for data for 1 s");
    let mut observer = AfterStep::new(|step, messages: &[String]| {
        // Some ten batches may have been prefetched before that.
        if step == 3 {
            server.delay_all(Duration::from_millis(1500));
        }
        if messages.iter().any(is_stall) {
            server.delay_all(Duration::ZERO);
        }
    });
    let mut spec = train_spec(data, output.path());
    spec.train.stream.stall_seconds = 1;
    let outcome = train(spec, &mut observer).unwrap();
    assert!(outcome.finished && observer.messages.iter().any(is_stall), "{:?}", observer.messages);
    // The delayed step did hardly anything but wait.
    let largest_share = metric(output.path(), "data_wait").into_iter().fold(0.0, f64::max);
    assert!(largest_share > 0.5, "{largest_share}");
}

/// A dataset whose stream ends after three batches without an error.
#[derive(Debug)]
struct StallingData(StoredDatasets);

#[derive(Debug)]
struct StallingStream {
    stream: Box<dyn BatchStream>,
    waits: usize,
}

impl TrainingData for StallingData {
    fn spec(&self) -> Result<DatasetSpec, Error> {
        self.0.spec()
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
        Ok(Box::new(StallingStream { stream: self.0.open_stream(phase, state)?, waits: 0 }))
    }
}

impl BatchStream for StallingStream {
    fn wait_until_ready(&mut self, timeout: Duration) -> Result<bool, Error> {
        self.waits += 1;
        assert!(self.waits < 20, "the trainer waits although it should stop");
        if self.waits > 3 {
            Ok(false)
        } else {
            self.stream.wait_until_ready(timeout.max(Duration::from_secs(60)))
        }
    }

    fn next_batch(&mut self) -> Result<Batch, Error> {
        self.stream.next_batch()
    }

    fn state(&self, next_phase: Option<&Phase<'_>>) -> Result<Value, Error> {
        self.stream.state(next_phase)
    }

    fn unreadable_rows(&self) -> BTreeMap<String, u64> {
        self.stream.unreadable_rows()
    }
}

/// Stops the run as soon as it waits for rows after three steps.
#[derive(Default)]
struct StopWhileWaiting {
    should_stop: bool,
}

impl Observer for StopWhileWaiting {
    fn on_step(&mut self, _metrics: &StepMetrics, _total_steps: u64) {}

    fn log(&mut self, _message: &str) {}

    fn should_stop(&self) -> bool {
        self.should_stop
    }

    fn on_activity(&mut self, step: u64, activity: Activity) {
        self.should_stop |= step == 3 && activity == Activity::WaitForData;
    }
}

#[test]
fn run_can_be_stopped_and_saved_while_it_waits_for_data() {
    let (data, output, uninterrupted) = (temp_dataset(), temp_dir(), temp_dir());
    let stalling = StallingData(stored_datasets(data.path()));
    let spec = TrainSpec { data: Box::new(stalling), ..train_spec(data.path(), output.path()) };
    let outcome = train(spec, &mut StopWhileWaiting::default()).unwrap();
    assert_eq!((outcome.steps, outcome.finished), (3, false));
    // The run resumes as if it had not been stopped.
    let outcome = train_quietly(train_spec(data.path(), output.path())).unwrap();
    assert_eq!((outcome.resumed_at, outcome.finished), (3, true));
    train_quietly(train_spec(data.path(), uninterrupted.path())).unwrap();
    assert_eq!(losses(output.path()), losses(uninterrupted.path()));
}

#[test]
fn missing_resolution_is_refused_before_the_first_step() {
    let (data, output) = (temp_dataset(), temp_dir());
    let mut spec = train_spec(data.path(), output.path());
    spec.train.phase[0].resolution = 256;
    let message = train_quietly(spec).unwrap_err().to_string();
    assert!(message.contains("256") && message.contains("64, 128"), "{message}");
    assert!(!output.path().join("metrics.jsonl").exists());
}

#[test]
fn unreadable_rows_end_the_run_or_are_skipped_and_counted() {
    let (data, stopped, skipping) = (temp_dataset(), temp_dir(), temp_dir());
    let unit = std::fs::read_dir(data.path().join("data")).unwrap().next().unwrap().unwrap().path();
    let attempt = std::fs::read_dir(unit).unwrap().next().unwrap().unwrap().path();
    let text = attempt.join("text.parquet");
    let mut bytes = std::fs::read(&text).unwrap();
    let tensor = random_f16(0, 60);
    let at = bytes.windows(tensor.len()).position(|window| window == tensor).unwrap();
    bytes[at] ^= 1;
    std::fs::write(&text, bytes).unwrap();
    let error = train_quietly(train_spec(data.path(), stopped.path())).unwrap_err().to_string();
    assert!(error.contains("text.parquet") && error.contains("wrong checksum of row"), "{error}");

    let mut spec = train_spec(data.path(), skipping.path());
    spec.train.stream.unreadable = UnreadableRows::Skip;
    let outcome = train_quietly(spec).unwrap();
    assert!(outcome.finished && (1..STEPS).contains(&outcome.skipped_rows), "{outcome:?}");
}
