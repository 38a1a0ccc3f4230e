//! Supervised ranks with checkpoints in a bucket that fails for some time. Another number of ranks
//! resumes from there, and the weights are those of a run with local checkpoints and no failure.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tidemill_testing::{Fault, S3Server};

use crate::common::{command, parse_output, tidemill_json, wait_until, write_run};

const BUCKET: &str = "ranks";

/// A dataset, a bucket, and a folder for the outputs of several runs.
struct TestRuns {
    run: String,
    folder: tempfile::TempDir,
    server: S3Server,
}

impl TestRuns {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let run = write_run(folder.path(), 96);
        let (code, result) = tidemill_json(&["preprocess", &run]);
        assert_eq!(code, 0, "{result}");
        Self { run, folder, server: S3Server::start(&[BUCKET]) }
    }

    fn output(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A verb with settings, for the output `name`.
    fn command(&self, verb: &str, name: &str, settings: &[String]) -> Command {
        let output = self.output(name);
        std::fs::create_dir_all(&output).unwrap();
        // A resumed run has the link already, so an error is ignored.
        let _ = std::os::unix::fs::symlink(self.output("out/dataset"), output.join("dataset"));
        let output = format!("output={:?}", output.display().to_string());
        let mut command = command(&[verb, &self.run, "--json", "--set", &output]);
        command.args(settings.iter().flat_map(|setting| ["--set", setting]));
        command.envs(self.server.settings()).env("OMP_NUM_THREADS", "1");
        command
    }

    /// Training with this many ranks up to a step.
    fn train(&self, name: &str, workers: &str, steps: u64, more: &[String]) -> Command {
        let settings = [
            format!("train.phase=[{{ resolution = 32, steps = {steps} }}]"),
            "train.global_batch=6".into(),
            "train.micro_batch=3".into(),
            "train.precision=\"f32\"".into(),
            "train.log_every=1".into(),
            "checkpoint.every=5".into(),
            "checkpoint.keep=2".into(),
        ];
        let mut command = self.command("train", name, &[&settings, more].concat());
        command.args(["--workers", workers]);
        command
    }

    /// Exports an output and reads its weights.
    fn export_weights(&self, name: &str, more: &[String]) -> Vec<u8> {
        let to = self.output(&format!("{name}-exported"));
        let mut export = self.command("export", name, more);
        let (code, result) = parse_output(&export.arg("--to").arg(&to).output().unwrap());
        assert_eq!(code, 0, "{result}");
        std::fs::read(to.join("unet/diffusion_pytorch_model.safetensors")).unwrap()
    }
}

fn count_steps(output: &Path) -> usize {
    std::fs::read_to_string(output.join("metrics.jsonl")).map_or(0, |text| text.lines().count())
}

#[test]
fn training_survives_a_checkpoint_store_outage() {
    let ranks = TestRuns::new();
    let bucket = [format!("checkpoint.uri=\"s3://{BUCKET}/run\"")];
    let (output, log_file) = (ranks.output("remote"), ranks.output("log"));
    let mut training = ranks.train("remote", "3", 20, &bucket);
    training.stderr(File::create(&log_file).unwrap()).stdout(Stdio::piped());
    let child = training.spawn().unwrap();
    let has_logged = |part: &str| std::fs::read_to_string(&log_file).unwrap().contains(part);
    // Expired credentials are an outage that the store client does not retry by itself.
    wait_until("the first step", || count_steps(&output) >= 1);
    ranks.server.fail_next(std::iter::repeat_n(Fault::Status(403), 100_000));
    wait_until("a checkpoint that fails", || has_logged("checkpoint of step 5 cannot be written"));
    let steps = count_steps(&output);
    wait_until("steps meanwhile", || count_steps(&output) >= (steps + 3).clamp(10, 18));
    assert!(ranks.server.stop_failing() > 0);
    let (code, result) = parse_output(&child.wait_with_output().unwrap());
    let log = std::fs::read_to_string(&log_file).unwrap();
    assert!(code == 0 && result["finished"] == true, "{log}");
    assert!(has_logged("training continues") && has_logged("checkpoint of step 5 is committed"), "{log}");
    assert_eq!(result["faults"], Value::Array(Vec::new()), "{log}");

    // Two checkpoints are kept, with three state shards each.
    let keys = ranks.server.keys(BUCKET);
    let count = |part: &str| keys.iter().filter(|key| key.contains(part)).count();
    assert_eq!((count("commit.json"), count(".safetensors")), (2, 6), "{keys:?}");
    // Each also has one file of the second and of the third rank.
    assert_eq!((count("step-"), count("step-00000020/")), (12, 6), "{keys:?}");

    let (code, result) = parse_output(&ranks.train("remote", "2", 25, &bucket).output().unwrap());
    assert_eq!((code, &result["resumed_at"]), (0, &20.into()), "{result}");
    for (workers, steps) in [("3", 20), ("2", 25)] {
        let (code, result) = parse_output(&ranks.train("local", workers, steps, &[]).output().unwrap());
        assert_eq!(code, 0, "{result}");
    }
    assert!(ranks.export_weights("remote", &bucket) == ranks.export_weights("local", &[]));
}
