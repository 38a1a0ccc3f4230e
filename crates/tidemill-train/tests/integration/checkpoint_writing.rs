//! Checkpoints are written in the background: a slow store does not delay steps, and a store that
//! fails does not end the run.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tidemill_io::{Limits, store};
use tidemill_testing::S3Server;
use tidemill_train::{CheckpointConfig, Checkpoints, Error, Observer, StepMetrics, TrainOutcome, train};

use crate::common::{
    checkpoint_config, load_weights, losses, temp_dataset, temp_dir, train_quietly, train_spec,
};

/// Calls a function after each step, with all messages so far. Checks that the metrics name the
/// last committed checkpoint.
pub struct AfterStep<F: FnMut(u64, &[String])> {
    pub messages: Vec<String>,
    pub after_step: F,
}

impl<F: FnMut(u64, &[String])> AfterStep<F> {
    pub fn new(after_step: F) -> Self {
        Self { messages: Vec::new(), after_step }
    }
}

impl<F: FnMut(u64, &[String])> Observer for AfterStep<F> {
    fn on_step(&mut self, metrics: &StepMetrics, _total_steps: u64) {
        let committed_step = |message: &String| -> Option<u64> {
            message.strip_prefix("checkpoint of step ")?.strip_suffix(" is committed")?.parse().ok()
        };
        let newest = self.messages.iter().rev().find_map(committed_step).unwrap_or(0);
        assert_eq!(metrics.checkpoint, newest, "in the metrics of step {}", metrics.step);
        (self.after_step)(metrics.step, &self.messages);
    }

    fn log(&mut self, message: &str) {
        self.messages.push(message.into());
    }

    fn should_stop(&self) -> bool {
        false
    }
}

/// Runs 40 steps with a checkpoint after every tenth.
fn run(
    data: &Path,
    output: &Path,
    uri: &str,
    after_step: impl FnMut(u64, &[String]),
) -> (TrainOutcome, Vec<String>) {
    let mut observer = AfterStep::new(after_step);
    let mut spec = train_spec(data, output);
    spec.checkpoint.uri = Some(uri.into());
    (train(spec, &mut observer).unwrap(), observer.messages)
}

fn last_checkpoint(uri: &str) -> Option<u64> {
    let config = CheckpointConfig { uri: Some(uri.into()), ..checkpoint_config() };
    Checkpoints::open(&config, Path::new("")).unwrap().list_steps().unwrap().last().copied()
}

#[test]
fn steps_do_not_wait_for_a_slow_store() {
    let (data, output) = (temp_dataset(), temp_dir());
    let server = S3Server::start(&["slow"]);
    store::connect("s3://slow", &server.settings(), Limits::default()).unwrap();
    let latency = Duration::from_secs(1);
    let (started, mut step_times) = (Instant::now(), Vec::new());
    let (outcome, messages) = run(data.path(), output.path(), "s3://slow/run", |step, _| {
        step_times.push(Instant::now());
        if step == 1 {
            server.delay_all(latency);
        }
    });
    let (stalled, total) = (outcome.checkpoint_seconds, started.elapsed().as_secs_f64());
    println!("steps waited {stalled:.4} of {:.2} s; with the last checkpoint {total:.2} s", outcome.seconds);
    // A checkpoint takes several requests. A step that waited for any of them would have waited so
    // long.
    assert!(stalled < latency.as_secs_f64(), "{stalled} s");
    // The outcome says so; the measured times must agree.
    let longest = step_times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
    assert!(longest < latency, "{longest:?} from one step to the next");
    assert!(messages.contains(&"checkpoint of step 40 is committed".into()), "{messages:?}");
    assert_eq!(last_checkpoint("s3://slow/run"), Some(40));
}

#[test]
fn failing_checkpoint_store_does_not_end_the_run() {
    let (data, folder) = (temp_dataset(), temp_dir());
    let [output, location, moved_away] = ["out", "to", "aside"].map(|name| folder.path().join(name));
    let uri = location.to_str().unwrap();
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut is_blocked = false;
    let after_step = |step, messages: &[String]| {
        if step == 5 {
            block(&location, &moved_away);
            is_blocked = true;
        }
        // The background writer has had time to fail by now.
        if is_blocked && step >= 25 && messages.iter().any(|message| message.contains("cannot be written")) {
            let failures = scrape(&address, "tidemill_checkpoint_failures_total");
            assert!(failures >= 1.0, "{failures}");
            unblock(&location, &moved_away);
            is_blocked = false;
        }
    };
    let mut observer = AfterStep::new(after_step);
    let mut spec = train_spec(data.path(), &output);
    spec.checkpoint.uri = Some(uri.into());
    spec.train.prometheus = Some(address.clone());
    let outcome = train(spec, &mut observer).unwrap();
    let messages = observer.messages;
    assert!(outcome.finished && losses(&output).len() == 40);
    let has_message = |part: &str| messages.iter().any(|message| message.contains(part));
    assert!(
        has_message("checkpoint of step 10 cannot be written") && has_message("training continues"),
        "{messages:?}"
    );
    let is_committed = |step: u64| has_message(&format!("checkpoint of step {step} is committed"));
    assert!(is_committed(10) && !is_committed(20) && is_committed(40), "{messages:?}");
    assert_eq!(last_checkpoint(uri), Some(40));
}

#[test]
fn store_that_forbids_deletes_still_gets_checkpoints() {
    let (data, output) = (temp_dataset(), temp_dir());
    let server = S3Server::start(&["forever"]);
    store::connect("s3://forever", &server.settings(), Limits::default()).unwrap();
    server.forbid_deletes();
    let (_, messages) = run(data.path(), output.path(), "s3://forever/run", |_, _| {});
    let has_message = |part: &str| messages.iter().any(|message| message.contains(part));
    assert!(
        has_message("checkpoint of step 40 is committed") && !has_message("cannot be written"),
        "{messages:?}"
    );
    assert!(
        has_message("beyond checkpoint.keep cannot be removed: cannot delete s3://forever/run/step-"),
        "{messages:?}"
    );
    assert_eq!(last_checkpoint("s3://forever/run"), Some(40));
}

#[test]
fn overtaken_run_ends_without_saving() {
    let (data, output, uninterrupted) = (temp_dataset(), temp_dir(), temp_dir());
    let owner_file = output.path().join("checkpoints/owner.json");
    let mut second = None;
    let after_step = |step, messages: &[String]| {
        // The second run can resume from step 10 then.
        let is_committed = messages.iter().any(|message| message.contains("step 10 is committed"));
        if step >= 15 && second.is_none() && is_committed {
            // A run that is refused does not take over.
            let mut other = train_spec(data.path(), output.path());
            other.seed += 1;
            let refused = train_quietly(other).unwrap_err();
            assert!(matches!(refused, Error::OtherRun { .. }), "{refused}");
            let owner = std::fs::read(&owner_file).unwrap();
            second = Some(train_quietly(train_spec(data.path(), output.path())).unwrap());
            assert_ne!(std::fs::read(&owner_file).unwrap(), owner);
        }
    };
    let mut observer = AfterStep::new(after_step);
    let error = train(train_spec(data.path(), output.path()), &mut observer).unwrap_err();
    drop(observer);
    println!("{error}");
    assert!(matches!(&error, Error::Overtaken { process, .. } if *process == std::process::id()), "{error}");
    let second = second.unwrap();
    assert!(second.finished && second.resumed_at >= 10, "{}", second.resumed_at);
    train_quietly(train_spec(data.path(), uninterrupted.path())).unwrap();
    let (step, weights) = load_weights(output.path(), false);
    assert_eq!(step, 40);
    assert!(weights == load_weights(uninterrupted.path(), false).1, "the weights differ");
}

#[test]
fn unwritable_checkpoint_location_is_refused_before_the_first_step() {
    let (data, folder) = (temp_dataset(), temp_dir());
    let (output, file) = (folder.path().join("out"), folder.path().join("file"));
    std::fs::write(&file, "in the way").unwrap();
    let mut spec = train_spec(data.path(), &output);
    spec.checkpoint.uri = Some(file.display().to_string());
    let error = train_quietly(spec).unwrap_err();
    assert!(matches!(&error, Error::Storage(_)) && error.to_string().contains("file"), "{error}");
    assert!(!output.join("metrics.jsonl").exists());
}

/// A number that a run serves to Prometheus.
fn scrape(address: &str, name: &str) -> f64 {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut page = String::new();
    socket.read_to_string(&mut page).unwrap();
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("{page}")).parse().unwrap()
}

/// Puts a file where the folder of checkpoints is.
fn block(location: &PathBuf, moved_away: &PathBuf) {
    std::fs::rename(location, moved_away).unwrap();
    std::fs::write(location, "in the way").unwrap();
}

fn unblock(location: &PathBuf, moved_away: &PathBuf) {
    std::fs::remove_file(location).unwrap();
    std::fs::rename(moved_away, location).unwrap();
}
