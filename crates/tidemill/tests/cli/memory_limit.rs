//! `engine.memory` with the real binary: the peak resident memory of `preprocess` over large
//! images, compared with that of the same command when nothing is left to do.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::Stdio;

use serde_json::Value;
use tidemill_testing::peak_kib;

use crate::common::{command, parse_output, tidemill_json};
use crate::noise_pairs::{Pair, draw_pairs, write_parquet, write_run_file, write_tar};

const MIB: u64 = 1 << 20;
const MEMORY: u64 = 128 * MIB;
const WORKERS: u64 = 2;
const LARGE: (usize, usize) = (3000, 2000);
const TINY: (usize, usize) = (80, 70);

/// Pairs. Every third pair has a large image.
fn draw_mixed_pairs(rows: usize) -> Vec<Pair> {
    draw_pairs((0..rows).map(|row| if row % 3 == 1 { LARGE } else { TINY }))
}

/// Splits pairs into groups of these lengths.
fn split_pairs<'a>(mut pairs: &'a [Pair], lengths: &[usize]) -> Vec<&'a [Pair]> {
    let next = |length: &usize| {
        let (group, rest) = pairs.split_at(*length);
        pairs = rest;
        group
    };
    lengths.iter().map(next).collect()
}

fn image_bytes(pairs: &[Pair]) -> u64 {
    pairs.iter().map(|pair| pair.jpeg.len() as u64).sum()
}

/// The result and the peak resident memory of `preprocess`, in bytes.
fn preprocess(run: &str) -> (Value, u64) {
    let (memory, workers) = (format!("engine.memory={MEMORY}"), format!("engine.prepare.workers={WORKERS}"));
    let mut child = command(&["preprocess", run, "--json", "--set", &memory, "--set", &workers])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        peak = peak.max(1024 * peak_kib(child.id()).unwrap_or(0));
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let output = child.wait_with_output().unwrap();
    let (code, result) = parse_output(&output);
    assert_eq!(code, 0, "{result}");
    (result, peak)
}

/// Checks that the peak memory stays within `engine.memory` plus what the documentation names.
fn assert_memory_limit(folder: &Path, format: &str, rows: usize) {
    let run = write_run_file(folder, format);
    let (result, peak) = preprocess(&run);
    assert_eq!(result["rows"]["kept"], rows, "{result}");
    let in_flight = &result["this_run"]["memory"];
    assert!(in_flight["peak"].as_u64().unwrap() <= MEMORY, "{in_flight}");

    let (idle, loaded) = preprocess(&run);
    assert_eq!(idle["this_run"], Value::Null, "{idle}");
    // Each worker has one decoded image, which `engine.memory` does not count.
    let decoded = WORKERS * 3 * (LARGE.0 * LARGE.1) as u64;
    let bound = loaded + MEMORY * 5 / 4 + decoded;
    let shown = [peak, loaded, bound].map(|bytes| bytes / MIB);
    println!("{format}: peak, models loaded, bound in MiB: {shown:?}; {in_flight}");
    assert!(peak <= bound, "{format}: {shown:?} MiB");
}

#[test]
fn large_images_in_parquet_stay_within_the_memory_limit() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("parquet")).unwrap();
    let lengths = [3, 36, 1, 17, 30, 36, 5, 36, 36, 36, 36, 36];
    let pairs = draw_mixed_pairs(lengths.iter().sum());
    assert!(image_bytes(&pairs) > MEMORY * 5 / 4, "the images fit into the limit, so the test shows nothing");
    let groups = split_pairs(&pairs, &lengths);
    write_parquet(&folder.path().join("parquet/a.parquet"), &groups[..4]);
    write_parquet(&folder.path().join("parquet/b.parquet"), &groups[4..]);
    assert_memory_limit(folder.path(), "parquet", pairs.len());
}

#[test]
fn large_images_in_tars_stay_within_the_memory_limit() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("webdataset")).unwrap();
    let lengths = [20, 90, 1, 60, 30, 90];
    let pairs = draw_mixed_pairs(lengths.iter().sum());
    assert!(image_bytes(&pairs) > MEMORY * 5 / 4, "the images fit into the limit, so the test shows nothing");
    for (number, pairs) in split_pairs(&pairs, &lengths).into_iter().enumerate() {
        write_tar(&folder.path().join(format!("webdataset/{number}.tar")), pairs);
    }
    assert_memory_limit(folder.path(), "webdataset", pairs.len());
}

#[test]
fn row_group_larger_than_the_memory_limit_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("parquet")).unwrap();
    let pairs = draw_pairs([LARGE; 4]);
    write_parquet(&folder.path().join("parquet/small.parquet"), &[&pairs[..1]]);
    write_parquet(&folder.path().join("parquet/heavy.parquet"), &[&pairs[..1], &pairs]);
    let run = write_run_file(folder.path(), "parquet");
    let memory = |bytes: u64| format!("engine.memory={bytes}");
    let (code, result) = tidemill_json(&["preprocess", &run, "--set", &memory(image_bytes(&pairs))]);
    let message = result["error"]["message"].as_str().unwrap();
    assert_eq!(code, 2, "{message}");
    assert!(message.contains("heavy.parquet") && message.contains("smaller row groups"), "{message}");
    // The value that the message asks for is enough.
    let least = message.split_once("raise it to ").unwrap().1.split_once(" or more").unwrap().0;
    let (code, result) = tidemill_json(&["preprocess", &run, "--set", &format!("engine.memory={least}")]);
    assert_eq!((code, &result["rows"]["kept"]), (0, &6.into()), "{result}");
}
