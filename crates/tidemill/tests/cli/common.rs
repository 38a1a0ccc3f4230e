//! Helpers of several tests: running the binary, the quickstart's models, a small run to
//! preprocess.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tidemill_store::Dataset;

/// The folder of the quickstart's tiny models.
pub fn models_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets")
}

/// The binary with arguments, not yet started.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidemill"));
    command.args(args).env("NO_COLOR", "1").env_remove("RUST_BACKTRACE");
    command
}

/// Runs the binary to its end.
pub fn tidemill(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

/// Runs the binary with `--json`. Returns the exit code and the last line of stdout.
pub fn tidemill_json(args: &[&str]) -> (i32, Value) {
    parse_output(&tidemill(&[args, &["--json"]].concat()))
}

/// Runs a verb of a run file with `--set` overrides and `--json`.
pub fn run_verb(verb: &str, run: &str, settings: &[&str]) -> (i32, Value) {
    let settings = settings.iter().flat_map(|setting| ["--set", setting]);
    tidemill_json(&[verb, run].into_iter().chain(settings).collect::<Vec<_>>())
}

/// Runs a verb of a run file with `--set` overrides, which must succeed. Returns its result.
pub fn run_verb_ok(verb: &str, run: &str, settings: &[&str]) -> Value {
    let (code, result) = run_verb(verb, run, settings);
    assert_eq!(code, 0, "{result}");
    result
}

/// The exit code and the last line of stdout of a command that was given `--json`.
pub fn parse_output(output: &Output) -> (i32, Value) {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let last = stdout.lines().last().unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    (output.status.code().unwrap(), serde_json::from_str(last).unwrap())
}

/// Starts a command whose output nobody reads.
pub fn spawn_silent(mut command: Command) -> std::process::Child {
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Draws `rows` small scenes into `folder/pairs` and writes `folder/run.toml` for them. Returns the
/// path of the run file.
pub fn write_run(folder: &Path, rows: usize) -> String {
    write_run_with_sides(folder, rows, 48..=96)
}

/// Like [`write_run`], but with images of these sides.
pub fn write_run_with_sides(folder: &Path, rows: usize, sides: RangeInclusive<u32>) -> String {
    let pairs = folder.join("pairs");
    let config = tidemill_synth::SynthConfig {
        rows,
        files: 2,
        row_group_rows: 32,
        broken: 0.05,
        min_side: *sides.start(),
        max_side: *sides.end(),
        ..Default::default()
    };
    tidemill_synth::write_scenes(&config, &pairs).unwrap();
    let run = folder.join("run.toml");
    let text = format!(
        r#"
name = "test"
output = "{out}"
[source]
uri = "{pairs}/*.parquet"
columns = {{ image = "jpg", caption = "caption", key = "key", width = "width", height = "height" }}
carry = ["score"]
rows_per_unit = 32
[filter]
score.score = {{ min = 4.5 }}
[prepare]
resolutions = [64, 32]
[models]
path = "{models}"
[encode]
batch_size = 8
[engine]
device = "cpu"
encode.threads = 1
"#,
        out = folder.join("out").display(),
        pairs = pairs.display(),
        models = models_folder().display(),
    );
    std::fs::write(&run, text).unwrap();
    run.display().to_string()
}

/// The manifest digest of the dataset in a run's output, after a check of its counts and of every
/// checksum.
pub fn verified_digest(output: &str, rows: usize) -> String {
    let dataset = Dataset::open(&format!("{output}/dataset")).unwrap();
    let counts = dataset.totals().unwrap().rows;
    assert_eq!(counts.read, rows as u64);
    assert!(counts.is_consistent() && dataset.verify(|_| ()).unwrap().damaged.is_empty());
    dataset.manifest_digest().to_owned()
}

/// The file names of the commits in a run's output.
pub fn list_commits(output: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(output.join("dataset/commits")).into_iter().flatten();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    // Files that are still being written have other names.
    names.filter(|name| name.ends_with(".json")).collect()
}

/// Waits until a condition holds, at most two minutes.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(120), "{what}: not within two minutes");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The path and the content of every file below a folder, sorted.
pub fn read_files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            let inner = read_files(&path).into_iter();
            found.extend(inner.map(|(inner, bytes)| (format!("{name}/{inner}"), bytes)));
        } else {
            found.push((name, std::fs::read(&path).unwrap()));
        }
    }
    found.sort();
    found
}
