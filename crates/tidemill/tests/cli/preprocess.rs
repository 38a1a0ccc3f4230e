//! `tidemill preprocess` with the quickstart's models: counts add up, a second run does nothing, a
//! stopped run resumes, and the bytes do not depend on workers and memory.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;

use crate::common::{command, list_commits, read_files, spawn_silent, tidemill_json, wait_until, write_run};
use serde_json::Value;
use tidemill_store::{Bucket, Dataset, Split};

const ROWS: usize = 192;

fn preprocess(run: &str, more: &[&str]) -> (i32, Value) {
    tidemill_json(&[&["preprocess", run], more].concat())
}

/// The data files by unit and column group, without the names of the attempts.
fn read_data(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let without_attempt = |path: &str| {
        let parts: Vec<&str> = path.split('/').collect();
        format!("{}/{}", parts[0], parts[parts.len() - 1])
    };
    read_files(&folder.join("out/dataset/data"))
        .into_iter()
        .map(|(path, bytes)| (without_attempt(&path), bytes))
        .collect()
}

#[test]
fn every_row_is_counted_once_and_a_second_run_does_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let run = write_run(folder.path(), ROWS);
    let (code, first) = preprocess(&run, &[]);
    assert_eq!(code, 0, "{first}");
    let rows = |name: &str| first["rows"][name].as_u64().unwrap();
    assert_eq!(rows("read"), ROWS as u64);
    assert_eq!(rows("kept") + rows("rejected") + rows("quarantined"), rows("read"), "{first}");
    let synth: Value =
        serde_json::from_slice(&std::fs::read(folder.path().join("pairs/synth.json")).unwrap()).unwrap();
    let broken: u64 = synth["broken"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
    // Filters run before decoding, so a damaged image with a low score is rejected and not decoded.
    assert!((1..=broken).contains(&rows("quarantined")), "{first} {synth}");
    assert!(rows("rejected") > 0 && rows("kept") > 0, "{first}");

    let before = read_files(&folder.path().join("out"));
    let (code, second) = preprocess(&run, &[]);
    assert_eq!((code, &second["rows"]), (0, &first["rows"]));
    assert_eq!(second["this_run"], Value::Null);
    assert_eq!(read_files(&folder.path().join("out")), before, "the second run changed files");

    let (code, inspected) = tidemill_json(&["inspect", folder.path().join("out/dataset").to_str().unwrap()]);
    assert_eq!((code, &inspected["rows"]), (0, &first["rows"]));
    let dataset = Dataset::open(folder.path().join("out/dataset").to_str().unwrap()).unwrap();
    assert_eq!(dataset.num_rows(Split::Train, Bucket::square(32)), rows("kept"));
    let tensors = dataset.read_tensors(Split::Train, Bucket::square(32), usize::MAX).unwrap();
    let values = |bytes: &[u8]| -> Vec<f32> {
        bytes.chunks(2).map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
    };
    assert!(values(&tensors.latents).iter().all(|v| v.is_finite()));
    assert!(values(&tensors.text[0]).iter().any(|v| *v != 0.0));
}

#[test]
fn every_kept_row_is_in_exactly_one_bucket() {
    let folder = tempfile::tempdir().unwrap();
    let run = write_run(folder.path(), 96);
    let (code, result) = preprocess(&run, &["--set", "prepare.crop=bucket", "--set", "prepare.flip=true"]);
    assert_eq!(code, 0, "{result}");
    let dataset = Dataset::open(folder.path().join("out/dataset").to_str().unwrap()).unwrap();
    let buckets = dataset.buckets(32);
    let rows: Vec<u64> = buckets.iter().map(|bucket| dataset.num_rows(Split::Train, *bucket)).collect();
    assert_eq!(rows.iter().sum::<u64>(), result["rows"]["kept"].as_u64().unwrap(), "{buckets:?} {rows:?}");
    assert!(rows.iter().filter(|rows| **rows > 0).count() > 1, "{buckets:?} {rows:?}");
    assert!(dataset.verify(|_| ()).unwrap().damaged.is_empty());
}

#[test]
fn bytes_do_not_depend_on_workers_and_memory() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let run = write_run(one.path(), 96);
    assert_eq!(
        preprocess(&run, &["--set", "engine.prepare.workers=1", "--set", "engine.encode.threads=1"]).0,
        0
    );
    let output = format!("output={}", two.path().join("out").display());
    let more = [
        "--set",
        "engine.prepare.workers=1..5",
        "--set",
        "engine.encode.threads=1",
        "--set",
        "engine.encode.workers=2",
        "--set",
        "engine.read.workers=3",
        "--set",
        "engine.memory=16 MiB",
        "--set",
        &output,
    ];
    let (code, result) = preprocess(&run, &more);
    assert_eq!(code, 0, "{result}");
    let memory = &result["this_run"]["memory"];
    assert_eq!(memory["limit"], 16 << 20);
    assert!((1..=16 << 20).contains(&memory["peak"].as_u64().unwrap()), "{memory}");
    let (one, two) = (read_data(one.path()), read_data(two.path()));
    assert!(one.len() >= 6, "{:?}", one.keys());
    assert_eq!(one, two);
}

#[test]
fn killed_run_resumes_with_the_missing_units() {
    let folder = tempfile::tempdir().unwrap();
    let run = write_run(folder.path(), 1024);
    let committed = || list_commits(&folder.path().join("out"));
    let mut child = spawn_silent(command(&["preprocess", &run]));
    wait_until("two commits", || committed().len() >= 2 || child.try_wait().unwrap().is_some());
    child.kill().unwrap();
    child.wait().unwrap();
    let before = committed();
    assert!(!before.is_empty());

    let (code, result) = preprocess(&run, &[]);
    assert_eq!(code, 0, "{result}");
    let units = &result["units"];
    assert_eq!(
        units["done"].as_u64().unwrap() + before.len() as u64,
        units["total"].as_u64().unwrap(),
        "{result}"
    );
    assert_eq!(result["rows"]["read"], 1024);
    let after = committed();
    assert!(before.iter().all(|name| after.contains(name)));
}

#[cfg(unix)]
#[test]
fn sigterm_stops_after_the_current_unit() {
    let folder = tempfile::tempdir().unwrap();
    let run = write_run(folder.path(), 2048);
    let child = command(&["preprocess", &run, "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("a commit", || !list_commits(&folder.path().join("out")).is_empty());
    let killed =
        std::process::Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let output = child.wait_with_output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stdout}");
    assert!(stdout.contains("run the same command again"), "{stdout}");
    assert_eq!(preprocess(&run, &[]).1["rows"]["read"], 2048);
}

#[test]
fn run_fails_if_too_many_rows_are_unreadable() {
    let folder = tempfile::tempdir().unwrap();
    let run = write_run(folder.path(), ROWS);
    let (code, result) = preprocess(&run, &["--set", "engine.max_bad_fraction=0.001"]);
    let message = result["error"]["message"].as_str().unwrap();
    assert_eq!(code, 1, "{result}");
    assert!(
        message.contains("engine.max_bad_fraction = 0.001") && message.contains("rows are unreadable"),
        "{message}"
    );
}

#[test]
fn missing_empty_caption_is_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let run = write_run(folder.path(), 16);
    preprocess(&run, &[]);
    let dataset = folder.path().join("out/dataset");
    let is_empty_caption = |name: &str| name.starts_with("empty-caption-");
    let names = std::fs::read_dir(&dataset).unwrap().map(|entry| entry.unwrap().file_name());
    let gone: Vec<_> = names.filter(|name| is_empty_caption(&name.to_string_lossy())).collect();
    std::fs::remove_file(dataset.join(&gone[0])).unwrap();
    assert_ne!(tidemill_json(&["inspect", &run]).0, 0);
    preprocess(&run, &[]);
    assert_eq!((gone.len(), tidemill_json(&["inspect", &run]).0), (1, 0));
}

#[test]
fn changed_settings_make_a_new_snapshot_and_gc_removes_the_old_one() {
    let folder = tempfile::tempdir().unwrap();
    let run = write_run(folder.path(), 64);
    let first = preprocess(&run, &[]).1;
    let second = preprocess(&run, &["--set", "prepare.resolutions=[32]"]).1;
    assert_eq!(second["units"]["done"], first["units"]["total"]);
    assert_eq!(second["rows"]["read"], first["rows"]["read"]);
    let gc = |more: &[&str]| {
        let (code, result) =
            tidemill_json(&[&["gc", &run, "--keep", "1", "--older-than-hours", "0"], more].concat());
        assert_eq!(code, 0, "{result}");
        result["removed"]["objects"].as_u64().unwrap()
    };
    let garbage = gc(&["--dry-run"]);
    assert!(garbage > 0 && gc(&[]) == garbage && gc(&[]) == 0);
    assert_eq!(preprocess(&run, &["--set", "prepare.resolutions=[32]"]).1["units"]["done"], 0);
}
