//! Streams over a bucket give the batches of a folder and read hardly more bytes than they need, in
//! constant memory.

use std::fs;

use tidemill_store::stream::{Rank, ReadOptions, Stream, WorldSize, single_dataset};
use tidemill_store::{Dataset, Error};
use tidemill_testing::{Fault, S3Server, peak_kib, seed};

use crate::support::remote::*;
use crate::support::*;

#[test]
fn stream_reads_at_most_ten_percent_more_than_needed() {
    let (server, folder) = (S3Server::start(&["read"]), tempfile::tempdir().unwrap());
    let [local, remote] =
        datasets_in_folder_and_bucket(&server, folder.path(), "read", &[900, 1, 700, 1100, 300, 1000]);
    let rows = Stream::open(&single_dataset(&local), s3_config(64), ReadOptions::default(), None)
        .unwrap()
        .num_rows();
    let row = (remote.spec().text.bytes() + 64 + 20) as u64;
    bytes_read(&server);
    // Read whole windows, because prefetched rows are not in the batches.
    let n = (2 * rows / 64) as usize;
    let ranks = (0..2).map(|rank| {
        let rank = Rank::new(WorldSize::new(2).unwrap(), rank).unwrap();
        let reading =
            || ReadOptions { rank: rank.clone(), prefetch: 1, readers: 4, ..ReadOptions::default() };
        let of = |dataset: &Dataset| take(dataset, 64, reading(), n);
        assert_eq!(of(&local), of(&remote));
        n as u64 * 64 / 2
    });
    let taken: u64 = ranks.sum();
    let amplification = bytes_read(&server) as f64 / (taken * row) as f64;
    println!("{taken} rows, {amplification:.3} times their bytes");
    // The part of the next window that is read ahead, and the first batch, come on top of an epoch.
    let ahead = 2.0 * 4.0 * 32.0 / taken as f64;
    assert!(amplification <= 1.1 + ahead, "{amplification} with {ahead} ahead");
}

#[test]
fn s3_faults_do_not_change_batches() {
    let (server, folder) = (S3Server::start(&["bad"]), tempfile::tempdir().unwrap());
    let [local, remote] = datasets_in_folder_and_bucket(&server, folder.path(), "bad", &[200, 150]);
    let all = [Fault::Status(500), Fault::Refuse, Fault::BreakBody(1000), Fault::Status(503), Fault::None];
    server.fail_next((0..200).map(|i| all[(hash(i, seed()) % 12).min(4) as usize]));
    let batches = take(&remote, 16, ReadOptions::default(), 40);
    assert_eq!(batches, take(&local, 16, ReadOptions::default(), 40));
}

#[test]
fn damaged_object_ends_the_stream_and_is_named() {
    let (server, folder) = (S3Server::start(&["damaged"]), tempfile::tempdir().unwrap());
    let [local, remote] = datasets_in_folder_and_bucket(&server, folder.path(), "damaged", &[320]);
    let path = files(folder.path()).into_iter().find(|path| path.ends_with("latents-64.parquet")).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    // Damage a tensor of a row group in the middle.
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    let key = format!("d/{}", path.strip_prefix(folder.path()).unwrap().display());
    server.put("damaged", &key, bytes);
    // Whole row groups, and, in a batch of many rows, rows that are read by range.
    for global_batch in [8, 200] {
        let mut stream =
            Stream::open(&single_dataset(&remote), s3_config(global_batch), ReadOptions::default(), None)
                .unwrap();
        let error = (0..100).find_map(|_| stream.next_batch().err()).expect("it is found within an epoch");
        assert!(matches!(&error, Error::Corrupt { path, .. } if path.ends_with(&key)), "{error}");
    }
    take(&local, 8, ReadOptions::default(), 80);
}

/// Reads the same number of batches of any dataset, and prints the peak memory of the process.
#[test]
#[ignore = "run by memory_does_not_grow_with_the_dataset in a process whose memory is its own"]
fn reads_many_batches() {
    let datasets = single_dataset(&Dataset::open(&std::env::var(CHILD_URI).unwrap()).unwrap());
    let mut stream = Stream::open(&datasets, s3_config(16), ReadOptions::default(), None).unwrap();
    (0..1500).for_each(|_| drop(stream.next_batch().unwrap()));
    println!("\n{{\"peak_kb\": {}}}", peak_kib(std::process::id()).unwrap());
}

#[test]
fn memory_does_not_grow_with_the_dataset() {
    let (server, folder) = (S3Server::start(&["memory"]), tempfile::tempdir().unwrap());
    let peak = |name: &str, units: &[u64]| -> u64 {
        let server_folder = folder.path().join(name);
        let [_, remote] =
            datasets_under_key(&server, &server_folder, "memory", name, spec_with_large_rows(256), units);
        let child = child_test(module_path!(), "reads_many_batches")
            .envs(server.settings())
            .env(CHILD_URI, remote.location().uri())
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&child.stdout);
        let line = output.lines().find(|line| line.starts_with('{')).unwrap();
        serde_json::from_str::<std::collections::HashMap<String, u64>>(line).unwrap()["peak_kb"]
    };
    let (few, many) = (peak("few", &[4000; 2]), peak("many", &[4000; 8]));
    println!("{few} kB for 8,000 rows, {many} kB for 32,000");
    // Two windows of four blocks of 256 rows take some 16 MB, and all tensors of the second dataset
    // some 190 MB.
    assert!(many < few + (20 << 10), "{few} kB, {many} kB");
}
