//! Streams over a bucket: the batches of a folder, hardly more bytes than they have, and a cache that is never wrong.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use support::*;
use tidemill_io::{Limits, store};
use tidemill_store::stream::{
    Batch, Phase, Rank, ReadOptions, Split, Stream, StreamConfig, WorldSize, single_dataset,
};
use tidemill_store::{Cache, Checksum, Dataset, DatasetSpec, Error, TensorSpec};
use tidemill_testing::{Fault, S3Server, peak_kib, seed, unshare};

/// Rows of 8 KB, so that the bytes of a batch are mostly theirs.
fn large(row_group_rows: u32) -> DatasetSpec {
    DatasetSpec { text: TensorSpec::f16([40, 100]), ..spec(row_group_rows, 0.0) }
}

/// The same dataset in a folder and in a bucket.
fn datasets(server: &S3Server, folder: &Path, bucket: &str, units: &[u64]) -> [Dataset; 2] {
    in_bucket(server, folder, bucket, "d", large(32), units)
}

/// The same under a name.
fn in_bucket(
    server: &S3Server,
    folder: &Path,
    bucket: &str,
    name: &str,
    spec: DatasetSpec,
    units: &[u64],
) -> [Dataset; 2] {
    let (first_pause, longest_pause) = (Duration::from_millis(1), Duration::from_millis(5));
    let uri = format!("s3://{bucket}");
    let limits = Limits { first_pause, longest_pause, ..Limits::default() };
    store::connect(&uri, &server.settings(), limits).unwrap();
    write_dataset(folder, spec, units);
    for file in files(folder) {
        let key = format!("{name}/{}", file.strip_prefix(folder).unwrap().display());
        server.put(bucket, &key, fs::read(&file).unwrap());
    }
    [open(folder), open(Path::new(&format!("{uri}/{name}")))]
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

fn config(global_batch: u64) -> StreamConfig {
    StreamConfig {
        seed: seed(),
        window: 4,
        split: Split::Train,
        bucket: None,
        phase: Phase::single_dataset(64, global_batch),
    }
}

fn take(dataset: &Dataset, global_batch: u64, reading: ReadOptions, n: usize) -> Vec<Batch> {
    let mut stream = Stream::open(&single_dataset(dataset), config(global_batch), reading, None).unwrap();
    (0..n).map(|_| stream.next_batch().unwrap()).collect()
}

/// Bytes of tensors that were asked for since the last call.
fn bytes_read(server: &S3Server) -> u64 {
    let requests = server.take_requests().into_iter().filter(|request| request.key.contains("data/"));
    requests.map(|request| request.bytes).sum()
}

#[test]
fn hardly_more_is_read_than_there_is() {
    let (server, folder) = (S3Server::start(&["read"]), tempfile::tempdir().unwrap());
    let [local, remote] = datasets(&server, folder.path(), "read", &[900, 1, 700, 1100, 300, 1000]);
    let rows =
        Stream::open(&single_dataset(&local), config(64), ReadOptions::default(), None).unwrap().num_rows();
    let row = (remote.spec().text.bytes() + 64 + 20) as u64;
    bytes_read(&server);
    // Whole windows, for whatever is read ahead is not in the batches.
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
    // The next window, of which some is read ahead, and the first batch come on top of what an epoch takes.
    let ahead = 2.0 * 4.0 * 32.0 / taken as f64;
    assert!(amplification <= 1.1 + ahead, "{amplification} with {ahead} ahead");
}

#[test]
fn a_store_with_bad_moments_changes_nothing() {
    let (server, folder) = (S3Server::start(&["bad"]), tempfile::tempdir().unwrap());
    let [local, remote] = datasets(&server, folder.path(), "bad", &[200, 150]);
    let all = [Fault::Status(500), Fault::Refuse, Fault::BreakBody(1000), Fault::Status(503), Fault::None];
    server.fail_next((0..200).map(|i| all[(hash(i, seed()) % 12).min(4) as usize]));
    let batches = take(&remote, 16, ReadOptions::default(), 40);
    assert_eq!(batches, take(&local, 16, ReadOptions::default(), 40));
}

#[test]
fn a_damaged_object_ends_the_stream_with_its_name() {
    let (server, folder) = (S3Server::start(&["damaged"]), tempfile::tempdir().unwrap());
    let [local, remote] = datasets(&server, folder.path(), "damaged", &[320]);
    let path = files(folder.path()).into_iter().find(|path| path.ends_with("latents-64.parquet")).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    // In the tensors of a row group in the middle.
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    let key = format!("d/{}", path.strip_prefix(folder.path()).unwrap().display());
    server.put("damaged", &key, bytes);
    // Whole row groups, and, with a batch of many rows, those that are read by themselves.
    for global_batch in [8, 200] {
        let mut stream =
            Stream::open(&single_dataset(&remote), config(global_batch), ReadOptions::default(), None)
                .unwrap();
        let error = (0..100).find_map(|_| stream.next_batch().err()).expect("it is found within an epoch");
        assert!(matches!(&error, Error::Corrupt { path, .. } if path.ends_with(&key)), "{error}");
    }
    take(&local, 8, ReadOptions::default(), 80);
}

#[test]
fn what_is_in_the_cache_is_not_fetched_again() {
    let (server, folder) = (S3Server::start(&["cached"]), tempfile::tempdir().unwrap());
    let [local, remote] = datasets(&server, &folder.path().join("d"), "cached", &[640, 320]);
    let expected = take(&local, 16, ReadOptions::default(), 60);
    let cached = |cache: &Arc<Cache>| {
        let reading = ReadOptions { cache: Some(cache.clone()), ..ReadOptions::default() };
        assert_eq!(take(&remote, 16, reading, 60), expected);
        // The stream was dropped, and its threads may still fetch what they had begun with.
        let until = Instant::now() + Duration::from_secs(60);
        while Arc::strong_count(cache) > 1 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(Arc::strong_count(cache), 1, "threads of a dropped stream go on");
        bytes_read(&server)
    };
    let place = folder.path().join("cache");
    bytes_read(&server);

    // Two processes at once, say: each row group is fetched by one.
    let caches = [(); 2].map(|()| Cache::open(&place, 1 << 30).unwrap());
    let once: u64 = std::thread::scope(|scope| {
        let threads = caches.each_ref().map(|cache| scope.spawn(|| cached(cache)));
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let stored: u64 = blocks(&place).iter().map(|file| fs::metadata(file).unwrap().len()).sum();
    println!("{once} bytes fetched, {stored} in the cache");
    // Two without a cache would read two and a half times as much.
    assert!(stored > 6_000_000 && once < stored * 8 / 5, "{once} of {stored}");
    assert!(cached(&caches[0]) < stored / 10, "all of it is there");

    // Damaged and lost files are fetched again; what a dead process left goes, what is not ours stays.
    let files = blocks(&place);
    let size = |file: &PathBuf| fs::metadata(file).unwrap().len();
    let spoilt: u64 = files[..3].iter().map(size).sum();
    fs::write(&files[0], vec![7; fs::metadata(&files[0]).unwrap().len() as usize]).unwrap();
    fs::write(&files[1], "short").unwrap();
    fs::remove_file(&files[2]).unwrap();
    for (name, hours) in [("unfinished-0123", 2), ("unfinished-4567", 0), ("notes.txt", 900)] {
        let file = fs::File::create(place.join(name)).unwrap();
        file.set_modified(std::time::SystemTime::now() - Duration::from_secs(3600 * hours)).unwrap();
    }
    let again = Cache::open(&place, 1 << 30).unwrap();
    assert!(cached(&again) >= spoilt);
    assert_eq!(blocks(&place).len(), files.len());
    let there = ["unfinished-0123", "unfinished-4567", "notes.txt"].map(|name| place.join(name).exists());
    assert_eq!(there, [false, true, true]);

    // A cache for a third of it still gives everything. What was used last stays, what was not for longest goes.
    let used = |file: &PathBuf, time| fs::File::open(file).unwrap().set_modified(time).unwrap();
    used(&files[5], std::time::SystemTime::now() + Duration::from_secs(60));
    used(&files[6], std::time::SystemTime::now() - Duration::from_secs(60));
    let small = Cache::open(&place, stored / 3).unwrap();
    let held = || -> u64 { blocks(&place).iter().map(size).sum() };
    assert!(held() <= stored / 3, "{} of {stored}", held());
    assert!(files[5].exists() && !files[6].exists());
    assert!(cached(&small) > stored / 4);
    assert!(held() <= stored / 3 + stored / 3 / 8, "{} of {stored}", held());
}

/// What is fetched again then depends on the order of the rows alone, and not on who was first to make room.
fn one_reader() -> ReadOptions {
    ReadOptions { readers: 1, ..ReadOptions::default() }
}

/// Runs a command ($2 and on) with a disk of its own at $1, which has room for a seventh of the test's dataset.
const ON_A_SMALL_DISK: &str = r#"mount -t tmpfs -o size=1m tmpfs "$1" && shift && exec "$@""#;

#[test]
fn a_full_disk_has_room_for_what_is_used_and_nothing_is_fetched_twice() {
    let Some(mut unshare) = unshare() else {
        eprintln!("skipped: neither root nor a user may mount a tmpfs here (unshare --mount)");
        return;
    };
    let (server, folder) = (S3Server::start(&["full"]), tempfile::tempdir().unwrap());
    let [_, remote] = datasets(&server, &folder.path().join("d"), "full", &[640, 320]);
    bytes_read(&server);
    // With as much room, but of a cache that knows it.
    let small = Cache::open(folder.path().join("small"), 1 << 20).unwrap();
    take(&remote, 16, ReadOptions { cache: Some(small), ..one_reader() }, 60);
    let small = bytes_read(&server);
    let place = folder.path().join("cache");
    fs::create_dir(&place).unwrap();
    let child = unshare
        .args(["sh", "-c", ON_A_SMALL_DISK, "sh", place.to_str().unwrap()])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "reads_with_a_full_cache", "--ignored", "--nocapture"])
        .envs(server.settings())
        .envs([(CHILD[0], place.to_str().unwrap()), (CHILD[1], remote.location().uri())])
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
    let full = bytes_read(&server);
    println!("{full} bytes fetched, {small} with a small cache");
    // Row groups that were fetched twice were half as much again.
    assert!(full < small * 4 / 3, "{full} bytes fetched, {small} with a small cache");
}

#[test]
#[ignore = "run by a_full_disk_has_room_for_what_is_used_and_nothing_is_fetched_twice on a disk of its own"]
fn reads_with_a_full_cache() {
    let [place, uri] = CHILD.map(|name| std::env::var(name).unwrap());
    let cache = Cache::open(&place, 1 << 30).unwrap();
    take(&Dataset::open(&uri).unwrap(), 16, ReadOptions { cache: Some(cache), ..one_reader() }, 60);
}

/// The row groups in a cache, by name.
fn blocks(cache: &Path) -> Vec<PathBuf> {
    let mut files = files(cache);
    files.retain(|file| file.file_name().unwrap().to_str().unwrap().as_bytes().get(16) == Some(&b'-'));
    files.sort();
    files
}

/// Names the cache and the dataset of a process that reads until it is killed.
const CHILD: [&str; 2] = ["TIDEMILL_TEST_CACHE", "TIDEMILL_TEST_URI"];

#[test]
#[ignore = "run by processes_that_are_killed_leave_a_cache_that_is_right in processes of its own"]
fn reads_until_it_is_killed() {
    let [place, uri] = CHILD.map(|name| std::env::var(name).unwrap());
    let dataset = Dataset::open(&uri).unwrap();
    let cache = Cache::open(place, CHILD_CACHE).unwrap();
    loop {
        take(&dataset, 16, ReadOptions { cache: Some(cache.clone()), ..ReadOptions::default() }, 60);
    }
}

/// Reads as many batches of any dataset, and says how much memory the process has had.
#[test]
#[ignore = "run by memory_does_not_grow_with_the_dataset in a process whose memory is its own"]
fn reads_many_batches() {
    let datasets = single_dataset(&Dataset::open(&std::env::var(CHILD[1]).unwrap()).unwrap());
    let mut stream = Stream::open(&datasets, config(16), ReadOptions::default(), None).unwrap();
    (0..1500).for_each(|_| drop(stream.next_batch().unwrap()));
    println!("\n{{\"peak_kb\": {}}}", peak_kib(std::process::id()).unwrap());
}

#[test]
fn memory_does_not_grow_with_the_dataset() {
    let (server, folder) = (S3Server::start(&["memory"]), tempfile::tempdir().unwrap());
    let peak = |name: &str, units: &[u64]| -> u64 {
        let server_folder = folder.path().join(name);
        let [_, remote] = in_bucket(&server, &server_folder, "memory", name, large(256), units);
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "reads_many_batches", "--ignored", "--nocapture"])
            .envs(server.settings())
            .env(CHILD[1], remote.location().uri())
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&child.stdout);
        let line = output.lines().find(|line| line.starts_with('{')).unwrap();
        serde_json::from_str::<std::collections::HashMap<String, u64>>(line).unwrap()["peak_kb"]
    };
    let (few, many) = (peak("few", &[4000; 2]), peak("many", &[4000; 8]));
    println!("{few} kB for 8,000 rows, {many} kB for 32,000");
    // Two windows of four blocks of 256 rows are some 16 MB, and all tensors of the second dataset some 190 MB.
    assert!(many < few + (20 << 10), "{few} kB, {many} kB");
}

/// Bytes of a cache that is too small for all row groups, so that files come and go.
const CHILD_CACHE: u64 = 3 << 20;

/// The row groups in a cache once they are others than these.
fn wait_for_others(cache: &Path, than: &[PathBuf]) -> Vec<PathBuf> {
    let since = Instant::now();
    loop {
        let there = blocks(cache);
        if there != than {
            return there;
        }
        assert!(since.elapsed() < Duration::from_secs(60), "nothing comes into the cache");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn processes_that_are_killed_leave_a_cache_that_is_right() {
    let (server, folder) = (S3Server::start(&["killed"]), tempfile::tempdir().unwrap());
    let [local, remote] = datasets(&server, &folder.path().join("d"), "killed", &[640, 320]);
    let place = folder.path().join("cache");
    let child = || {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "reads_until_it_is_killed", "--ignored"])
            .envs(server.settings())
            .envs([(CHILD[0], place.to_str().unwrap()), (CHILD[1], "s3://killed/d")])
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    fs::create_dir_all(&place).unwrap();
    let mut children: VecDeque<Child> = (0..3).map(|_| child()).collect();
    let mut seen = Vec::new();
    for round in 0..12 {
        // Wherever they are in their work, but not before there was any: a machine may be slow to start them.
        seen = wait_for_others(&place, &seen);
        std::thread::sleep(Duration::from_millis(20 + hash(round, seed()) % 150));
        let mut oldest = children.pop_front().unwrap();
        assert!(oldest.try_wait().unwrap().is_none(), "it goes on until it is killed");
        oldest.kill().unwrap();
        oldest.wait().unwrap();
        children.push_back(child());
    }
    for mut child in children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let left = blocks(&place);
    for file in &left {
        let name = file.file_name().unwrap().to_str().unwrap();
        let bytes = fs::read(file).unwrap();
        assert_eq!(format!("{}-{}", Checksum::of(&bytes), bytes.len()), name);
    }
    let cache = Cache::open(&place, CHILD_CACHE).unwrap();
    let reading = ReadOptions { cache: Some(cache), ..ReadOptions::default() };
    assert_eq!(take(&remote, 16, reading, 60), take(&local, 16, ReadOptions::default(), 60));
}
