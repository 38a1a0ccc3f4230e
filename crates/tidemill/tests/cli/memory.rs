//! `engine.memory` on the real thing: the most resident memory of `preprocess` over pairs that are hard to hold, beside
//! that of the same command with nothing left to do.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::Stdio;

use serde_json::Value;
use tidemill_testing::peak_kib;

use crate::common::{command, json, tidemill_json};
use crate::pairs::{Pair, draw, parquet, run_file, tar};

const MIB: u64 = 1 << 20;
const MEMORY: u64 = 128 * MIB;
const WORKERS: u64 = 2;
const LARGE: (usize, usize) = (3000, 2000);
const TINY: (usize, usize) = (80, 70);

/// Every third one is large.
fn mixed(rows: usize) -> Vec<Pair> {
    draw((0..rows).map(|row| if row % 3 == 1 { LARGE } else { TINY }))
}

/// Splits pairs into stretches of these lengths.
fn split<'a>(mut pairs: &'a [Pair], lengths: &[usize]) -> Vec<&'a [Pair]> {
    let next = |length: &usize| {
        let (stretch, rest) = pairs.split_at(*length);
        pairs = rest;
        stretch
    };
    lengths.iter().map(next).collect()
}

fn bytes(pairs: &[Pair]) -> u64 {
    pairs.iter().map(|pair| pair.jpeg.len() as u64).sum()
}

/// Result and most resident memory of `preprocess`.
fn preprocess(run: &str) -> (Value, u64) {
    let (memory, workers) = (format!("engine.memory={MEMORY}"), format!("engine.prepare.workers={WORKERS}"));
    let mut child = command(&["preprocess", run, "--json", "--set", &memory, "--set", &workers])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut most = 0;
    while child.try_wait().unwrap().is_none() {
        most = most.max(1024 * peak_kib(child.id()).unwrap_or(0));
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let output = child.wait_with_output().unwrap();
    let (code, result) = json(&output);
    assert_eq!(code, 0, "{result}");
    (result, most)
}

/// Checks what `engine.memory` promises.
fn check(folder: &Path, format: &str, rows: usize) {
    let run = run_file(folder, format);
    let (result, most) = preprocess(&run);
    assert_eq!(result["rows"]["kept"], rows, "{result}");
    let in_flight = &result["this_run"]["memory"];
    assert!(in_flight["peak"].as_u64().unwrap() <= MEMORY, "{in_flight}");

    let (idle, loaded) = preprocess(&run);
    assert_eq!(idle["this_run"], Value::Null, "{idle}");
    // Each worker has one image unpacked; that comes on top.
    let unpacked = WORKERS * 3 * (LARGE.0 * LARGE.1) as u64;
    let bound = loaded + MEMORY * 5 / 4 + unpacked;
    let shown = [most, loaded, bound].map(|bytes| bytes / MIB);
    println!("{format}: peak, models loaded, bound in MiB: {shown:?}; {in_flight}");
    assert!(most <= bound, "{format}: {shown:?} MiB");
}

#[test]
fn large_images_in_unequal_row_groups_stay_within_the_memory() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("parquet")).unwrap();
    let lengths = [3, 36, 1, 17, 30, 36, 5, 36, 36, 36, 36, 36];
    let pairs = mixed(lengths.iter().sum());
    assert!(bytes(&pairs) > MEMORY * 5 / 4, "too little to show anything");
    let groups = split(&pairs, &lengths);
    parquet(&folder.path().join("parquet/a.parquet"), &groups[..4]);
    parquet(&folder.path().join("parquet/b.parquet"), &groups[4..]);
    check(folder.path(), "parquet", pairs.len());
}

#[test]
fn large_images_in_tars_stay_within_the_memory() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("webdataset")).unwrap();
    let lengths = [20, 90, 1, 60, 30, 90];
    let pairs = mixed(lengths.iter().sum());
    assert!(bytes(&pairs) > MEMORY * 5 / 4, "too little to show anything");
    for (number, pairs) in split(&pairs, &lengths).into_iter().enumerate() {
        tar(&folder.path().join(format!("webdataset/{number}.tar")), pairs);
    }
    check(folder.path(), "webdataset", pairs.len());
}

#[test]
fn a_row_group_that_does_not_fit_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("parquet")).unwrap();
    let pairs = draw([LARGE; 4]);
    parquet(&folder.path().join("parquet/small.parquet"), &[&pairs[..1]]);
    parquet(&folder.path().join("parquet/heavy.parquet"), &[&pairs[..1], &pairs]);
    let run = run_file(folder.path(), "parquet");
    let memory = |bytes: u64| format!("engine.memory={bytes}");
    let (code, result) = tidemill_json(&["preprocess", &run, "--set", &memory(bytes(&pairs))]);
    let message = result["error"]["message"].as_str().unwrap();
    assert_eq!(code, 2, "{message}");
    assert!(message.contains("heavy.parquet") && message.contains("smaller row groups"), "{message}");
    // What the message asks for is enough.
    let least = message.split_once("raise it to ").unwrap().1.split_once(" or more").unwrap().0;
    let (code, result) = tidemill_json(&["preprocess", &run, "--set", &format!("engine.memory={least}")]);
    assert_eq!((code, &result["rows"]["kept"]), (0, &6.into()), "{result}");
}
