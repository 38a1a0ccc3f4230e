//! Checkpoints are written beside training: a slow store does not hold steps up, and one that fails does not end them.

use crate::common::{dataset, job, losses, metric};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tidemill_io::{Limits, store};
use tidemill_store::stream::{Batch, single_dataset};
use tidemill_store::{Dataset, DatasetSpec};
use tidemill_testing::S3Server;
use tidemill_train::{
    Activity, BatchStream, CheckpointConfig, Checkpoints, Error, Observer, Phase, StepMetrics,
    StoredDatasets, TrainConfig, TrainOutcome, TrainSpec, TrainingData, train,
};

/// Hears what is said, and does something after a step, with what it has heard.
struct Listener<F: FnMut(u64, &[String])> {
    heard: Vec<String>,
    after: F,
}

impl<F: FnMut(u64, &[String])> Observer for Listener<F> {
    fn on_step(&mut self, metrics: &StepMetrics, _total: u64) {
        let committed = |said: &String| -> Option<u64> {
            said.strip_prefix("checkpoint of step ")?.strip_suffix(" is committed")?.parse().ok()
        };
        let newest = self.heard.iter().rev().find_map(committed).unwrap_or(0);
        assert_eq!(metrics.checkpoint, newest, "in the metrics of step {}", metrics.step);
        (self.after)(metrics.step, &self.heard);
    }

    fn log(&mut self, message: &str) {
        self.heard.push(message.into());
    }

    fn should_stop(&self) -> bool {
        false
    }
}

/// Runs 40 steps with checkpoints after each tenth.
fn run(
    data: &Path,
    output: &Path,
    uri: &str,
    after: impl FnMut(u64, &[String]),
) -> (TrainOutcome, Vec<String>) {
    let mut listener = Listener { heard: Vec::new(), after };
    let mut job = job(data, output);
    job.checkpoint.uri = Some(uri.into());
    (train(job, &mut listener).unwrap(), listener.heard)
}

fn checkpoints(uri: &str) -> Checkpoints {
    let config = CheckpointConfig { uri: Some(uri.into()), ..crate::common::checkpoints() };
    Checkpoints::open(&config, Path::new("")).unwrap()
}

#[test]
fn steps_do_not_wait_for_a_slow_store() {
    let (data, output) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    dataset(data.path());
    let server = S3Server::start(&["slow"]);
    store::connect("s3://slow", &server.settings(), Limits::default()).unwrap();
    let latency = Duration::from_secs(1);
    let (started, mut steps) = (Instant::now(), Vec::new());
    let (outcome, heard) = run(data.path(), output.path(), "s3://slow/run", |step, _| {
        steps.push(Instant::now());
        if step == 1 {
            server.delay_all(latency);
        }
    });
    let (waited, all) = (outcome.checkpoint_seconds, started.elapsed().as_secs_f64());
    println!("steps waited {waited:.4} of {:.2} s; with the last checkpoint {all:.2} s", outcome.seconds);
    // To write one takes several requests; a step that waited for any would have waited this long.
    assert!(waited < latency.as_secs_f64(), "{waited} s");
    // That is what the run says, and this what there was.
    let longest = steps.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
    assert!(longest < latency, "{longest:?} from one step to the next");
    assert!(heard.contains(&"checkpoint of step 40 is committed".into()), "{heard:?}");
    assert_eq!(checkpoints("s3://slow/run").list_steps().unwrap().last(), Some(&40));
}

#[test]
fn a_store_that_fails_does_not_end_a_run() {
    let (data, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    dataset(data.path());
    let (output, place, aside) =
        (folder.path().join("out"), folder.path().join("to"), folder.path().join("aside"));
    let uri = place.to_str().unwrap();
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut blocked = false;
    let after = |step, heard: &[String]| {
        if step == 5 {
            block(&place, &aside);
            blocked = true;
        }
        // Other threads write, and have time to try.
        if blocked && step >= 25 && heard.iter().any(|said| said.contains("cannot be written")) {
            let failures = scraped(&address, "tidemill_checkpoint_failures_total");
            assert!(failures >= 1.0, "{failures}");
            unblock(&place, &aside);
            blocked = false;
        }
    };
    let mut listener = Listener { heard: Vec::new(), after };
    let mut job = job(data.path(), &output);
    job.checkpoint.uri = Some(uri.into());
    job.train.prometheus = Some(address.clone());
    let outcome = train(job, &mut listener).unwrap();
    let heard = listener.heard;
    assert!(outcome.finished && losses(&output).len() == 40);
    let said = |part: &str| heard.iter().any(|message| message.contains(part));
    assert!(said("checkpoint of step 10 cannot be written") && said("training goes on"), "{heard:?}");
    let committed = |step: u64| said(&format!("checkpoint of step {step} is committed"));
    assert!(committed(10) && !committed(20) && committed(40), "{heard:?}");
    assert_eq!(checkpoints(uri).list_steps().unwrap().last(), Some(&40));
}

#[test]
fn a_store_that_deletes_nothing_has_good_checkpoints_nevertheless() {
    let (data, output) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    dataset(data.path());
    let server = S3Server::start(&["forever"]);
    store::connect("s3://forever", &server.settings(), Limits::default()).unwrap();
    server.forbid_deletes();
    let (_, heard) = run(data.path(), output.path(), "s3://forever/run", |_, _| {});
    let said = |part: &str| heard.iter().any(|message| message.contains(part));
    assert!(said("checkpoint of step 40 is committed") && !said("cannot be written"), "{heard:?}");
    assert!(
        said("beyond checkpoint.keep cannot be removed: cannot delete s3://forever/run/step-"),
        "{heard:?}"
    );
    assert_eq!(checkpoints("s3://forever/run").list_steps().unwrap().last(), Some(&40));
}

#[test]
fn a_run_that_another_process_takes_over_ends_before_it_saves() {
    let (data, output, whole) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    dataset(data.path());
    let place = output.path().join("checkpoints");
    let mut second = None;
    let after = |step, heard: &[String]| {
        // It has step 10 to go on from, whatever became of that one yet.
        if step >= 15 && second.is_none() && heard.iter().any(|said| said.contains("step 10 is committed")) {
            // One that is refused takes nothing over.
            let mut other = job(data.path(), output.path());
            other.seed += 1;
            let refused = train(other, &mut crate::common::Quiet::default()).unwrap_err();
            assert!(matches!(refused, Error::OtherRun { .. }), "{refused}");
            let owner = std::fs::read(place.join("owner.json")).unwrap();
            second =
                Some(train(job(data.path(), output.path()), &mut crate::common::Quiet::default()).unwrap());
            assert_ne!(std::fs::read(place.join("owner.json")).unwrap(), owner);
        }
    };
    let mut listener = Listener { heard: Vec::new(), after };
    let error = train(job(data.path(), output.path()), &mut listener).unwrap_err();
    drop(listener);
    println!("{error}");
    assert!(matches!(&error, Error::Overtaken { process, .. } if *process == std::process::id()), "{error}");
    let second = second.unwrap();
    assert!(second.finished && second.resumed_at >= 10, "{}", second.resumed_at);
    train(job(data.path(), whole.path()), &mut crate::common::Quiet::default()).unwrap();
    let weights = |output: &Path| {
        let checkpoints = Checkpoints::open(&crate::common::checkpoints(), output).unwrap();
        checkpoints.load_latest_weights(false).unwrap()
    };
    let ((step, ours), (_, expected)) = (weights(output.path()), weights(whole.path()));
    assert_eq!(step, 40);
    assert!(ours.iter().zip(&expected).all(|((_, ours), (_, expected))| ours.equal(expected)));
}

#[test]
fn a_place_that_cannot_be_written_is_refused_before_the_first_step() {
    let (data, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    dataset(data.path());
    let (output, file) = (folder.path().join("out"), folder.path().join("file"));
    std::fs::write(&file, "in the way").unwrap();
    let mut job = job(data.path(), &output);
    job.checkpoint.uri = Some(file.display().to_string());
    let error = train(job, &mut crate::common::Quiet::default()).unwrap_err();
    assert!(matches!(&error, Error::Storage(_)) && error.to_string().contains("file"), "{error}");
    assert!(!output.join("metrics.jsonl").exists());
}

#[test]
fn a_store_that_keeps_steps_waiting_for_rows_is_named() {
    let output = tempfile::tempdir().unwrap();
    let server = S3Server::start(&["late"]);
    store::connect("s3://late", &server.settings(), Limits::default()).unwrap();
    let data = Path::new("s3://late/dataset");
    dataset(data);
    let waits = |said: &String| said.contains("has waited for data for 1 s");
    let after = |step, heard: &[String]| {
        // Some ten batches may have been read before that.
        if step == 3 {
            server.delay_all(Duration::from_millis(1500));
        }
        if heard.iter().any(waits) {
            server.delay_all(Duration::ZERO);
        }
    };
    let mut listener = Listener { heard: Vec::new(), after };
    let mut job = job(data, output.path());
    job.train.stream.stall_seconds = 1;
    let outcome = train(job, &mut listener).unwrap();
    assert!(outcome.finished && listener.heard.iter().any(waits), "{:?}", listener.heard);
    // That step did hardly anything else.
    let share = metric(output.path(), "data_wait").into_iter().fold(0.0, f64::max);
    assert!(share > 0.5, "{share}");
}

/// StoredDatasets rows that do not come any more after three batches.
#[derive(Debug)]
struct Drying(StoredDatasets);

#[derive(Debug)]
struct DryingBatches {
    batches: Box<dyn BatchStream>,
    asked: usize,
}

impl TrainingData for Drying {
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
        Ok(Box::new(DryingBatches { batches: self.0.open_stream(phase, state)?, asked: 0 }))
    }
}

impl BatchStream for DryingBatches {
    fn wait_until_ready(&mut self, patience: Duration) -> Result<bool, Error> {
        self.asked += 1;
        assert!(self.asked < 20, "it goes on waiting");
        if self.asked > 3 {
            Ok(false)
        } else {
            self.batches.wait_until_ready(patience.max(Duration::from_secs(60)))
        }
    }

    fn next_batch(&mut self) -> Result<Batch, Error> {
        self.batches.next_batch()
    }

    fn state(&self, next_phase: Option<&Phase<'_>>) -> Result<Value, Error> {
        self.batches.state(next_phase)
    }

    fn unreadable_rows(&self) -> BTreeMap<String, u64> {
        self.batches.unreadable_rows()
    }
}

/// Wants to stop as soon as rows are waited for after three steps.
#[derive(Default)]
struct Impatient(bool);

impl Observer for Impatient {
    fn on_step(&mut self, _metrics: &StepMetrics, _total: u64) {}

    fn log(&mut self, _message: &str) {}

    fn should_stop(&self) -> bool {
        self.0
    }

    fn on_activity(&mut self, step: u64, activity: Activity) {
        self.0 |= step == 3 && activity == Activity::WaitForData;
    }
}

#[test]
fn a_run_that_waits_for_rows_can_be_stopped_and_saves_what_it_has() {
    let (data, output, whole) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    dataset(data.path());
    let stored = || StoredDatasets(single_dataset(&Dataset::open(data.path().to_str().unwrap()).unwrap()));
    let drying = TrainSpec { data: Box::new(Drying(stored())), ..job(data.path(), output.path()) };
    let outcome = train(drying, &mut Impatient::default()).unwrap();
    assert_eq!((outcome.steps, outcome.finished), (3, false));
    // It goes on as if nothing had been.
    let outcome = train(job(data.path(), output.path()), &mut crate::common::Quiet::default()).unwrap();
    assert_eq!((outcome.resumed_at, outcome.finished), (3, true));
    train(job(data.path(), whole.path()), &mut crate::common::Quiet::default()).unwrap();
    assert_eq!(losses(output.path()), losses(whole.path()));
}

/// A number that a run serves to Prometheus.
fn scraped(address: &str, name: &str) -> f64 {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut page = String::new();
    socket.read_to_string(&mut page).unwrap();
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("{page}")).parse().unwrap()
}

/// Puts a file where the folder of checkpoints is.
fn block(place: &PathBuf, aside: &PathBuf) {
    std::fs::rename(place, aside).unwrap();
    std::fs::write(place, "in the way").unwrap();
}

fn unblock(place: &PathBuf, aside: &PathBuf) {
    std::fs::remove_file(place).unwrap();
    std::fs::rename(aside, place).unwrap();
}
