//! Source, dataset and checkpoints in a bucket: the result is that of a run on local files.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;
use tidemill_io::{Limits, store};
use tidemill_store::{Bucket, Dataset, Split};
use tidemill_testing::{Request, S3Server};

use crate::common::{command, parse_output, spawn_silent, tidemill_json, verified_digest, write_run};

/// A run whose pairs are in a bucket, reachable by this process and its children.
pub struct RemoteRun {
    pub server: S3Server,
    pub bucket: &'static str,
    pub folder: tempfile::TempDir,
    /// The path of a run file from `pairs/` to `out/` of the bucket.
    pub run: String,
    pub rows: usize,
}

impl RemoteRun {
    /// Starts a server with one bucket. Each test needs a bucket with another name, because a
    /// process connects to a bucket only once.
    pub fn new(bucket: &'static str, rows: usize) -> Self {
        let server = S3Server::start(&[bucket]);
        let folder = tempfile::tempdir().unwrap();
        let local = write_run(folder.path(), rows);
        for entry in std::fs::read_dir(folder.path().join("pairs")).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            server.put(bucket, &format!("pairs/{name}"), std::fs::read(path).unwrap());
        }
        let local_folder = folder.path().display();
        let text = std::fs::read_to_string(&local).unwrap();
        let text = text
            .replace(&format!("{local_folder}/pairs/"), &format!("s3://{bucket}/pairs/"))
            .replace(&format!("{local_folder}/out"), &format!("s3://{bucket}/out"));
        let run = folder.path().join("remote.toml").display().to_string();
        std::fs::write(&run, text).unwrap();
        store::connect(&format!("s3://{bucket}"), &server.settings(), Limits::default()).unwrap();
        Self { server, bucket, folder, run, rows }
    }

    pub fn uri(&self, key: &str) -> String {
        format!("s3://{}/{key}", self.bucket)
    }

    pub fn local(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// The binary with `--json` and with the server's address and credentials in its environment.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = command(arguments);
        command.envs(self.server.settings()).arg("--json");
        command
    }

    pub fn json(&self, arguments: &[&str]) -> (i32, Value) {
        parse_output(&self.command(arguments).output().unwrap())
    }

    /// The arguments of `preprocess` with settings and one thread, because the bytes of tensors
    /// depend on the number of threads.
    pub fn preprocess<'a>(&'a self, settings: &[&'a str]) -> Vec<&'a str> {
        let settings = settings.iter().flat_map(|setting| ["--set", setting]);
        ["preprocess", &self.run, "--set", "engine.encode.threads=1"].into_iter().chain(settings).collect()
    }

    /// Preprocesses and returns the dataset's digest.
    pub fn digest_of(&self, output: &str, settings: &[&str]) -> String {
        let output_is = format!("output={output}");
        let (code, result) = self.json(&self.preprocess(&[&[output_is.as_str()], settings].concat()));
        assert_eq!(code, 0, "{result}");
        verified_digest(output, self.rows)
    }

    /// Starts preprocessing in the background.
    pub fn start(&self) -> std::process::Child {
        spawn_silent(self.command(&self.preprocess(&[])))
    }

    /// The number of units that are committed in `out/`.
    pub fn count_commits(&self) -> usize {
        let keys = self.server.keys(self.bucket);
        keys.iter().filter(|key| key.starts_with("out/dataset/commits/")).count()
    }
}

/// All latents and text embeddings at 64 pixels, without the sample ids.
fn read_tensors(output: &str) -> (Vec<u8>, Vec<u8>) {
    let dataset = Dataset::open(&format!("{output}/dataset")).unwrap();
    let found = dataset.read_tensors(Split::Train, Bucket::square(64), usize::MAX).unwrap();
    (found.latents, found.text.concat())
}

#[test]
fn run_in_a_bucket_equals_run_on_local_files() {
    let remote = RemoteRun::new("whole", 192);
    let (out, local) = (remote.uri("out"), remote.local("out"));
    let whole = remote.digest_of(&out, &[]);

    // The second command has nothing to do and writes nothing.
    let keys = remote.server.keys("whole");
    remote.server.take_requests();
    let (code, second) = remote.json(&remote.preprocess(&[]));
    assert_eq!((code, &second["this_run"]), (0, &Value::Null), "{second}");
    assert_eq!(remote.server.keys("whole"), keys);
    let reads = |request: &Request| matches!(request.method.as_str(), "GET" | "HEAD");
    let written = |request: &Request| !reads(request) && request.status == Some(200);
    assert!(!remote.server.take_requests().iter().any(written));

    // The same pairs into a local folder, and local pairs into both. The sample ids differ between
    // a bucket and a disk, so only the tensors are equal.
    assert_eq!(remote.digest_of(&local, &[]), whole);
    let pairs = format!("source.uri={}", remote.local("pairs/*.parquet"));
    let (up, here) = (remote.uri("from-here"), remote.local("from-here"));
    assert_eq!(remote.digest_of(&up, &[&pairs]), remote.digest_of(&here, &[&pairs]));
    assert_eq!(read_tensors(&out), read_tensors(&here));

    let dataset = remote.uri("out/dataset");
    // Datasets and run files are compared separately, because only a run file names the tokenizer.
    for (there, here) in [(&dataset, remote.local("out/dataset")), (&remote.run, remote.local("run.toml"))] {
        let (code, inspected) = remote.json(&["inspect", there]);
        assert_eq!(code, 0, "{inspected}");
        let local = tidemill_json(&["inspect", &here]).1;
        for part in ["digest", "totals", "spec", "rows", "histograms"] {
            assert_eq!(inspected[part], local[part], "{part}");
        }
    }
    let (code, nothing) = remote.json(&["inspect", &remote.uri("missing")]);
    let message = nothing["error"]["message"].as_str().unwrap();
    assert!(code == 2 && message.contains("there is no dataset at s3://whole/missing"), "{message}");
}

/// Settings for short training with small batches.
const TRAINING: &str = r#"
[train]
global_batch = 8
micro_batch = 8
precision = "f32"
warmup_steps = 1
log_every = 1
[[train.phase]]
resolution = 64
steps = 8
[checkpoint]
every = 2
"#;

#[test]
fn training_resumes_from_a_checkpoint_in_a_bucket() {
    let remote = RemoteRun::new("checkpoints", 64);
    let local = format!("output={}", remote.local("out"));
    let checkpoints = format!("checkpoint.uri={}", remote.uri("checkpoints"));
    let run = remote.local("train.toml");
    let text = std::fs::read_to_string(remote.local("run.toml")).unwrap();
    std::fs::write(&run, text.clone() + TRAINING).unwrap();
    let verb = |verb: &'static str, more: &[&str]| {
        remote.json(&[&[verb, &run, "--set", &local, "--set", &checkpoints], more].concat())
    };
    assert_eq!(verb("preprocess", &[]).0, 0);

    // An output in a bucket is refused, because training writes metrics into a local folder.
    let output = format!("output={}", remote.uri("out"));
    let (code, refused) = verb("train", &["--set", &output]);
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(code == 2 && message.contains("checkpoint.uri"), "{message}");

    // Killed after the first checkpoint.
    let arguments = ["train", &run, "--set", &local, "--set", &checkpoints];
    let mut child = spawn_silent(remote.command(&arguments));
    let committed = || {
        let keys = remote.server.keys("checkpoints");
        keys.iter().filter(|key| key.ends_with("commit.json")).count()
    };
    crate::common::wait_until("a checkpoint", || committed() > 0 || child.try_wait().unwrap().is_some());
    child.kill().unwrap();
    child.wait().unwrap();
    let (code, trained) = verb("train", &[]);
    assert_eq!((code, &trained["steps"]), (0, &8.into()), "{trained}");
    assert!(trained["resumed_at"].as_u64().unwrap() >= 2, "{trained}");
    assert!(!Path::new(&remote.local("out/checkpoints")).exists(), "checkpoints are only in the bucket");

    let (code, exported) = verb("export", &["--to", &remote.local("model")]);
    assert_eq!((code, &exported["step"]), (0, &8.into()), "{exported}");
}

/// Uses the quickstart's models and batches, with 10 steps between checkpoints instead of 400.
#[test]
fn slow_store_hardly_delays_training_steps() {
    let remote = RemoteRun::new("slow", 128);
    let local = format!("output={}", remote.local("out"));
    let run = remote.local("train.toml");
    let text = std::fs::read_to_string(remote.local("run.toml")).unwrap();
    std::fs::write(&run, text + TRAINING).unwrap();
    assert_eq!(remote.json(&["preprocess", &run, "--set", &local]).0, 0);
    let latency = Duration::from_secs(1);
    remote.server.delay_all(latency);
    let settings = [
        &local,
        &format!("checkpoint.uri={}", remote.uri("checkpoints")),
        "checkpoint.every=10",
        "train.global_batch=32",
        "train.micro_batch=32",
        "train.ema={ decay = 0.99 }",
        "train.phase=[{resolution = 64, steps = 20}]",
    ];
    let settings = settings.iter().flat_map(|setting| ["--set", *setting]);
    let (code, trained) = remote.json(&["train", &run].into_iter().chain(settings).collect::<Vec<_>>());
    assert_eq!((code, &trained["steps"]), (0, &20.into()), "{trained}");
    let number = |name: &str| trained[name].as_f64().unwrap();
    let share = number("checkpoint_stall_seconds") / number("seconds");
    println!("two checkpoints took {:.2} % of {:.1} s", 100.0 * share, number("seconds"));
    // A step that waited for a single request would have waited longer. Copies of the weights take
    // a tenth of a second in all, and four times as long on a busy machine.
    assert!(number("checkpoint_stall_seconds") < latency.as_secs_f64(), "{trained}");
    assert!(remote.server.keys("slow").iter().any(|key| key.ends_with("step-00000020/commit.json")));
}

/// The message of a command that was refused or failed.
fn parse_error_message(output: &Output) -> String {
    let (code, result) = parse_output(output);
    let message = result["error"]["message"].as_str().unwrap_or_else(|| panic!("{result}"));
    println!("{code}: {message}");
    assert!([1, 2].contains(&code), "{result}");
    message.to_owned()
}

#[test]
fn wrong_credentials_and_missing_buckets_are_reported_with_advice() {
    let remote = RemoteRun::new("refused", 32);
    let pairs = format!("source.uri={}", remote.local("pairs/*.parquet"));
    let missing = ["source.uri=s3://no-such-bucket/*.parquet", "output=s3://no-such-bucket/out"];
    let wrong = ("AWS_SECRET_ACCESS_KEY", "wrong");
    let right = ("AWS_REGION", "us-east-1");
    let cases: [(&[&str], _, _); 4] = [
        (&[], wrong, ["cannot list s3://refused/pairs", "SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY"]),
        (&[&pairs], wrong, ["s3://refused/out/dataset", "SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY"]),
        (&missing[..1], right, ["s3://no-such-bucket", "there is no such bucket", "AWS_ENDPOINT_URL"]),
        (&missing[1..], right, ["s3://no-such-bucket/out", "there is no such bucket", "AWS_ENDPOINT_URL"]),
    ];
    for (settings, (variable, value), expected) in cases {
        let message = parse_error_message(
            &remote.command(&remote.preprocess(settings)).env(variable, value).output().unwrap(),
        );
        assert!(expected.iter().all(|part| message.contains(part)), "{expected:?}: {message}");
    }
}

/// Checkpoints and evaluations in a bucket, as on a cluster: the evaluator's machine has neither.
#[test]
fn checkpoints_in_a_bucket_are_evaluated_into_the_bucket() {
    let remote = RemoteRun::new("evaluations", 64);
    let out = format!("output={:?}", remote.local("here"));
    let [checkpoints, evaluations] = [("checkpoint", "ckpt"), ("eval", "eval")]
        .map(|(section, key)| format!("{section}.uri={:?}", remote.uri(key)));
    let settings = [
        out.as_str(),
        &checkpoints,
        &evaluations,
        "train.phase=[{resolution = 32, steps = 2}]",
        "train.global_batch=4",
        "train.micro_batch=4",
        "sample.steps=2",
        "eval.scenes=5",
        "eval.block=2",
    ];
    let run = |verb: &str| {
        let settings = settings.iter().flat_map(|setting| ["--set", setting]);
        let (code, result) =
            remote.json(&[verb, &remote.run].into_iter().chain(settings).collect::<Vec<_>>());
        assert_eq!(code, 0, "{result}");
        result
    };
    run("preprocess");
    run("train");
    std::fs::remove_dir_all(remote.local("here")).unwrap();
    let result = run("eval");
    assert_eq!((&result["step"], &result["images"]), (&2.into(), &5.into()), "{result}");
    let keys = remote.server.keys(remote.bucket);
    let has = |key: &str| keys.iter().any(|found| found == &format!("eval/{key}"));
    assert!(has("step-00000002.json") && has("step-00000002.parquet") && has("metrics.svg"), "{keys:?}");
    assert_eq!(keys.iter().filter(|key| key.contains("/pictures/")).count(), 5);
}
