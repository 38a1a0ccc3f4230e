//! The row group cache of remote datasets: shared between processes, limited, damaged, on a full
//! disk, and with processes that are killed.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidemill_store::stream::ReadOptions;
use tidemill_store::{Cache, Checksum, Dataset};
use tidemill_testing::{S3Server, seed, unshare};

use crate::support::remote::*;
use crate::support::*;

#[test]
fn cached_row_groups_are_not_fetched_again() {
    let (server, folder) = (S3Server::start(&["cached"]), tempfile::tempdir().unwrap());
    let [local, remote] =
        datasets_in_folder_and_bucket(&server, &folder.path().join("d"), "cached", &[640, 320]);
    let expected = take(&local, 16, ReadOptions::default(), 60);
    let cached = |cache: &Arc<Cache>| {
        let reading = ReadOptions { cache: Some(cache.clone()), ..ReadOptions::default() };
        assert_eq!(take(&remote, 16, reading, 60), expected);
        // The stream was dropped, but its threads may still finish what they were fetching.
        let until = Instant::now() + Duration::from_secs(60);
        while Arc::strong_count(cache) > 1 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(Arc::strong_count(cache), 1, "threads of a dropped stream still run");
        bytes_read(&server)
    };
    let cache_folder = folder.path().join("cache");
    bytes_read(&server);

    // Two streams at once, like two processes: each row group is fetched by one of them.
    let caches = [(); 2].map(|()| Cache::open(&cache_folder, 1 << 30).unwrap());
    let once: u64 = std::thread::scope(|scope| {
        let threads = caches.each_ref().map(|cache| scope.spawn(|| cached(cache)));
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let stored: u64 = blocks(&cache_folder).iter().map(|file| fs::metadata(file).unwrap().len()).sum();
    println!("{once} bytes fetched, {stored} in the cache");
    // Two streams without a cache would read two and a half times as much.
    assert!(stored > 6_000_000 && once < stored * 8 / 5, "{once} of {stored}");
    assert!(cached(&caches[0]) < stored / 10, "all of it is there");

    // Damaged and lost files are fetched again. Files of dead processes are removed, and foreign
    // files are kept.
    let files = blocks(&cache_folder);
    let size = |file: &PathBuf| fs::metadata(file).unwrap().len();
    let spoilt: u64 = files[..3].iter().map(size).sum();
    fs::write(&files[0], vec![7; fs::metadata(&files[0]).unwrap().len() as usize]).unwrap();
    fs::write(&files[1], "short").unwrap();
    fs::remove_file(&files[2]).unwrap();
    for (name, hours) in [("unfinished-0123", 2), ("unfinished-4567", 0), ("notes.txt", 900)] {
        let file = fs::File::create(cache_folder.join(name)).unwrap();
        file.set_modified(std::time::SystemTime::now() - Duration::from_secs(3600 * hours)).unwrap();
    }
    let again = Cache::open(&cache_folder, 1 << 30).unwrap();
    assert!(cached(&again) >= spoilt);
    assert_eq!(blocks(&cache_folder).len(), files.len());
    let exist =
        ["unfinished-0123", "unfinished-4567", "notes.txt"].map(|name| cache_folder.join(name).exists());
    assert_eq!(exist, [false, true, true]);

    // A cache for a third of the data still gives all rows. The most recently used file is kept,
    // and the least recently used one is evicted.
    let used = |file: &PathBuf, time| fs::File::open(file).unwrap().set_modified(time).unwrap();
    used(&files[5], std::time::SystemTime::now() + Duration::from_secs(60));
    used(&files[6], std::time::SystemTime::now() - Duration::from_secs(60));
    let small = Cache::open(&cache_folder, stored / 3).unwrap();
    let held = || -> u64 { blocks(&cache_folder).iter().map(size).sum() };
    assert!(held() <= stored / 3, "{} of {stored}", held());
    assert!(files[5].exists() && !files[6].exists());
    assert!(cached(&small) > stored / 4);
    assert!(held() <= stored / 3 + stored / 3 / 8, "{} of {stored}", held());
}

/// With one reader, what is fetched again depends only on the order of the rows, and not on which
/// thread evicts first.
fn one_reader() -> ReadOptions {
    ReadOptions { readers: 1, ..ReadOptions::default() }
}

/// Runs a command ($2 and on) with a small disk mounted at $1. It has room for a seventh of the
/// test's dataset.
const ON_A_SMALL_DISK: &str = r#"mount -t tmpfs -o size=1m tmpfs "$1" && shift && exec "$@""#;

#[test]
fn full_disk_evicts_row_groups_without_fetching_twice() {
    let Some(mut unshare) = unshare() else {
        eprintln!("skipped: neither root nor a user may mount a tmpfs here (unshare --mount)");
        return;
    };
    let (server, folder) = (S3Server::start(&["full"]), tempfile::tempdir().unwrap());
    let [_, remote] = datasets_in_folder_and_bucket(&server, &folder.path().join("d"), "full", &[640, 320]);
    bytes_read(&server);
    // A cache whose limit equals the size of the small disk.
    let small = Cache::open(folder.path().join("small"), 1 << 20).unwrap();
    take(&remote, 16, ReadOptions { cache: Some(small), ..one_reader() }, 60);
    let small = bytes_read(&server);
    let cache_folder = folder.path().join("cache");
    fs::create_dir(&cache_folder).unwrap();
    let child = unshare
        .args(["sh", "-c", ON_A_SMALL_DISK, "sh", cache_folder.to_str().unwrap()])
        .arg(std::env::current_exe().unwrap())
        .args(child_test_arguments(module_path!(), "reads_with_a_full_cache"))
        .envs(server.settings())
        .envs([(CHILD_CACHE, cache_folder.to_str().unwrap()), (CHILD_URI, remote.location().uri())])
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
    let full = bytes_read(&server);
    println!("{full} bytes fetched, {small} with a small cache");
    // If row groups were fetched twice, it would be half as much again.
    assert!(full < small * 4 / 3, "{full} bytes fetched, {small} with a small cache");
}

#[test]
#[ignore = "run by full_disk_evicts_row_groups_without_fetching_twice on a disk of its own"]
fn reads_with_a_full_cache() {
    let [cache_folder, uri] = [CHILD_CACHE, CHILD_URI].map(|name| std::env::var(name).unwrap());
    let cache = Cache::open(&cache_folder, 1 << 30).unwrap();
    take(&Dataset::open(&uri).unwrap(), 16, ReadOptions { cache: Some(cache), ..one_reader() }, 60);
}

/// The row groups in a cache, by file name.
fn blocks(cache: &Path) -> Vec<PathBuf> {
    let mut files = files(cache);
    files.retain(|file| file.file_name().unwrap().to_str().unwrap().as_bytes().get(16) == Some(&b'-'));
    files.sort();
    files
}

#[test]
#[ignore = "run by killed_processes_leave_an_intact_cache in processes of its own"]
fn reads_until_it_is_killed() {
    let [cache_folder, uri] = [CHILD_CACHE, CHILD_URI].map(|name| std::env::var(name).unwrap());
    let dataset = Dataset::open(&uri).unwrap();
    let cache = Cache::open(cache_folder, CHILD_CACHE_BYTES).unwrap();
    loop {
        take(&dataset, 16, ReadOptions { cache: Some(cache.clone()), ..ReadOptions::default() }, 60);
    }
}

/// A limit in bytes that is too small for all row groups, so that files come and go.
const CHILD_CACHE_BYTES: u64 = 3 << 20;

/// Waits until the cache holds other row groups than these, and returns them.
fn wait_for_others(cache: &Path, than: &[PathBuf]) -> Vec<PathBuf> {
    let since = Instant::now();
    loop {
        let present = blocks(cache);
        if present != than {
            return present;
        }
        assert!(since.elapsed() < Duration::from_secs(60), "nothing comes into the cache");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn killed_processes_leave_an_intact_cache() {
    let (server, folder) = (S3Server::start(&["killed"]), tempfile::tempdir().unwrap());
    let [local, remote] =
        datasets_in_folder_and_bucket(&server, &folder.path().join("d"), "killed", &[640, 320]);
    let cache_folder = folder.path().join("cache");
    let child = || {
        child_test(module_path!(), "reads_until_it_is_killed")
            .envs(server.settings())
            .envs([(CHILD_CACHE, cache_folder.to_str().unwrap()), (CHILD_URI, "s3://killed/d")])
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    fs::create_dir_all(&cache_folder).unwrap();
    let mut children: VecDeque<Child> = (0..3).map(|_| child()).collect();
    let mut seen = Vec::new();
    for round in 0..12 {
        // Kill at any point of the work, but not before there was any, because a machine may start
        // processes slowly.
        seen = wait_for_others(&cache_folder, &seen);
        std::thread::sleep(Duration::from_millis(20 + hash(round, seed()) % 150));
        let mut oldest = children.pop_front().unwrap();
        assert!(oldest.try_wait().unwrap().is_none(), "it ended before it was killed");
        oldest.kill().unwrap();
        oldest.wait().unwrap();
        children.push_back(child());
    }
    for mut child in children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let left = blocks(&cache_folder);
    for file in &left {
        let name = file.file_name().unwrap().to_str().unwrap();
        let bytes = fs::read(file).unwrap();
        assert_eq!(format!("{}-{}", Checksum::compute(&bytes), bytes.len()), name);
    }
    let cache = Cache::open(&cache_folder, CHILD_CACHE_BYTES).unwrap();
    let reading = ReadOptions { cache: Some(cache), ..ReadOptions::default() };
    assert_eq!(take(&remote, 16, reading, 60), take(&local, 16, ReadOptions::default(), 60));
}
