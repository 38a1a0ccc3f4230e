//! What the integration tests share: running the binary, the quickstart's models, a small world to preprocess.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;
use tidemill_store::Dataset;

/// The quickstart's tiny models.
pub fn assets() -> PathBuf {
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

/// Runs the binary with `--json` and gives the exit code and the last line of stdout.
pub fn tidemill_json(args: &[&str]) -> (i32, Value) {
    json(&tidemill(&[args, &["--json"]].concat()))
}

/// The exit code and the last line of stdout of a command that was given `--json`.
pub fn json(output: &Output) -> (i32, Value) {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let last = stdout.lines().last().unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    (output.status.code().unwrap(), serde_json::from_str(last).unwrap())
}

/// Draws `rows` small scenes into `folder/pairs` and writes `folder/run.toml` for them.
pub fn world(folder: &Path, rows: usize) -> String {
    world_of(folder, rows, 48..=96)
}

/// The same with images of these sides.
pub fn world_of(folder: &Path, rows: usize, sides: RangeInclusive<u32>) -> String {
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
    tidemill_synth::synth(&config, &pairs).unwrap();
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
"#,
        out = folder.join("out").display(),
        pairs = pairs.display(),
        models = assets().display(),
    );
    std::fs::write(&run, text).unwrap();
    run.display().to_string()
}

/// Digest of what the dataset of a run's output holds, with the counts checked and every checksum verified.
pub fn digest(output: &str, rows: usize) -> String {
    let dataset = Dataset::open(&format!("{output}/dataset")).unwrap();
    let counts = dataset.totals().unwrap().rows;
    assert_eq!(counts.read, rows as u64);
    assert!(counts.is_consistent() && dataset.verify(|_| ()).unwrap().damaged.is_empty());
    dataset.manifest_digest().to_owned()
}

/// The unit's name of each commit in a dataset's folder.
pub fn commits(output: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(output.join("dataset/commits")).into_iter().flatten();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    // A put in the making has a name of its own.
    names.filter(|name| name.ends_with(".json")).collect()
}

/// Waits until something is so, for two minutes at most.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(120), "{what}: not within two minutes");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Every file below a folder, by its path there, with its content.
pub fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            found.extend(files(&path).into_iter().map(|(inner, bytes)| (format!("{name}/{inner}"), bytes)));
        } else {
            found.push((name, std::fs::read(&path).unwrap()));
        }
    }
    found.sort();
    found
}
