//! Several ranks as the binary starts them, with checkpoints in a bucket that fails for a while: any other number goes on from
//! there, and the weights are those of a run that wrote files and met no failure.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tidemill_testing::{Fault, S3Server};

use crate::common::{command, json, tidemill_json, wait_until, world};

const BUCKET: &str = "ranks";

/// A run on a dataset of its own, its outputs in a folder.
struct Ranks {
    run: String,
    folder: tempfile::TempDir,
    server: S3Server,
}

impl Ranks {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let run = world(folder.path(), 96);
        let (code, result) = tidemill_json(&["preprocess", &run]);
        assert_eq!(code, 0, "{result}");
        Self { run, folder, server: S3Server::start(&[BUCKET]) }
    }

    fn output(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A verb with settings, for one of the outputs.
    fn command(&self, verb: &str, name: &str, settings: &[String]) -> Command {
        let output = self.output(name);
        std::fs::create_dir_all(&output).unwrap();
        // Again for the run that goes on.
        let _ = std::os::unix::fs::symlink(self.output("out/dataset"), output.join("dataset"));
        let output = format!("output={:?}", output.display().to_string());
        let mut command = command(&[verb, &self.run, "--json", "--set", &output]);
        command.args(settings.iter().flat_map(|setting| ["--set", setting]));
        command.envs(self.server.settings()).env("OMP_NUM_THREADS", "1");
        command
    }

    /// Trains on so many ranks up to a step.
    fn train(&self, name: &str, workers: &str, steps: u64, more: &[String]) -> Command {
        let settings = [
            format!("train.phase=[{{ resolution = 64, steps = {steps} }}]"),
            "train.global_batch=6".into(),
            "train.micro_batch=3".into(),
            "train.precision=\"f32\"".into(),
            "train.log_every=1".into(),
            "checkpoint.every=10".into(),
            "checkpoint.keep=2".into(),
        ];
        let mut command = self.command("train", name, &[&settings, more].concat());
        command.args(["--workers", workers]);
        command
    }

    /// The weights that an output has been exported to.
    fn weights(&self, name: &str, more: &[String]) -> Vec<u8> {
        let to = self.output(&format!("{name}-exported"));
        let mut export = self.command("export", name, more);
        let (code, result) = json(&export.arg("--to").arg(&to).output().unwrap());
        assert_eq!(code, 0, "{result}");
        std::fs::read(to.join("unet/diffusion_pytorch_model.safetensors")).unwrap()
    }
}

fn steps_so_far(output: &Path) -> usize {
    std::fs::read_to_string(output.join("metrics.jsonl")).map_or(0, |text| text.lines().count())
}

#[test]
fn ranks_save_into_a_bucket_that_fails_for_a_while() {
    let ranks = Ranks::new();
    let bucket = [format!("checkpoint.uri=\"s3://{BUCKET}/run\"")];
    let (output, said) = (ranks.output("remote"), ranks.output("said"));
    let mut training = ranks.train("remote", "3", 60, &bucket);
    training.stderr(File::create(&said).unwrap()).stdout(Stdio::piped());
    let child = training.spawn().unwrap();
    let heard = |part: &str| std::fs::read_to_string(&said).unwrap().contains(part);
    // Credentials that have run out are an outage that is not tried again below.
    wait_until("the first step", || steps_so_far(&output) >= 1);
    ranks.server.fail_next(std::iter::repeat_n(Fault::Status(403), 100_000));
    wait_until("a checkpoint that fails", || heard("checkpoint of step 10 cannot be written"));
    let steps = steps_so_far(&output);
    wait_until("steps meanwhile", || steps_so_far(&output) >= 30.max(steps + 3));
    assert!(ranks.server.stop_failing() > 0);
    let (code, result) = json(&child.wait_with_output().unwrap());
    let words = std::fs::read_to_string(&said).unwrap();
    assert!(code == 0 && result["finished"] == true, "{words}");
    assert!(heard("training continues") && heard("checkpoint of step 10 is committed"), "{words}");
    assert_eq!(result["faults"], Value::Array(Vec::new()), "{words}");

    // Those that are kept, each of three shards, and nothing else.
    let keys = ranks.server.keys(BUCKET);
    let count = |part: &str| keys.iter().filter(|key| key.contains(part)).count();
    assert_eq!((count("commit.json"), count(".safetensors")), (2, 6), "{keys:?}");
    // Beside them the words of the second and third rank.
    assert_eq!((count("step-"), count("step-00000060/")), (12, 6), "{keys:?}");

    let (code, result) = json(&ranks.train("remote", "2", 70, &bucket).output().unwrap());
    assert_eq!((code, &result["resumed_at"]), (0, &60.into()), "{result}");
    for (workers, steps) in [("3", 60), ("2", 70)] {
        let (code, result) = json(&ranks.train("local", workers, steps, &[]).output().unwrap());
        assert_eq!(code, 0, "{result}");
    }
    assert!(ranks.weights("remote", &bucket) == ranks.weights("local", &[]));
}
