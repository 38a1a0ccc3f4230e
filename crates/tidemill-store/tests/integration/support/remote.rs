//! Datasets in a bucket of a local S3 server, and tests that run in a child process.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tidemill_io::{Limits, store};
use tidemill_store::stream::{Batch, Phase, ReadOptions, Split, StreamConfig};
use tidemill_store::{Dataset, DatasetSpec, TensorSpec};
use tidemill_testing::{S3Server, seed};

use super::streams::take_batches;
use super::{open, spec, write_dataset};

/// Environment variables that name the cache and the dataset of a child process.
pub const CHILD_CACHE: &str = "TIDEMILL_TEST_CACHE";
pub const CHILD_URI: &str = "TIDEMILL_TEST_URI";

/// A command that runs one ignored test of a module, given as `module_path!()`, in a child process.
pub fn child_test(module: &str, test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(child_test_arguments(module, test));
    command
}

/// The arguments of this test program that run one ignored test of a module.
pub fn child_test_arguments(module: &str, test: &str) -> [String; 4] {
    let (_, module) = module.split_once("::").unwrap();
    ["--exact".into(), format!("{module}::{test}"), "--ignored".into(), "--nocapture".into()]
}

/// Connects to a bucket, with short pauses before requests are repeated.
pub fn connect(server: &S3Server, uri: &str) {
    let limits = Limits {
        initial_backoff: Duration::from_millis(1),
        max_backoff: Duration::from_millis(5),
        ..Limits::default()
    };
    store::connect(uri, &server.settings(), limits).unwrap();
}

/// Rows of 8 KB, so that tensors are most of the bytes of a batch.
pub fn spec_with_large_rows(row_group_rows: u32) -> DatasetSpec {
    DatasetSpec { text: TensorSpec::f16([40, 100]), ..spec(row_group_rows, 0.0) }
}

/// Writes the same dataset into a folder and into a bucket, under the key `d`.
pub fn datasets_in_folder_and_bucket(
    server: &S3Server,
    folder: &Path,
    bucket: &str,
    units: &[u64],
) -> [Dataset; 2] {
    datasets_under_key(server, folder, bucket, "d", spec_with_large_rows(32), units)
}

/// Writes the same dataset into a folder and into a bucket, under the key `name`.
pub fn datasets_under_key(
    server: &S3Server,
    folder: &Path,
    bucket: &str,
    name: &str,
    spec: DatasetSpec,
    units: &[u64],
) -> [Dataset; 2] {
    let uri = format!("s3://{bucket}");
    connect(server, &uri);
    write_dataset(folder, spec, units);
    for file in files(folder) {
        let key = format!("{name}/{}", file.strip_prefix(folder).unwrap().display());
        server.put(bucket, &key, fs::read(&file).unwrap());
    }
    [open(folder), open(Path::new(&format!("{uri}/{name}")))]
}

/// The files below a folder.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

pub fn s3_config(global_batch: u64) -> StreamConfig {
    StreamConfig {
        seed: seed(),
        window: 4,
        split: Split::Train,
        bucket: None,
        phase: Phase::single_dataset(64, global_batch),
    }
}

/// Bytes of data files that were requested since the last call.
pub fn bytes_read(server: &S3Server) -> u64 {
    let requests = server.take_requests().into_iter().filter(|request| request.key.contains("data/"));
    requests.map(|request| request.bytes).sum()
}

/// The first `n` batches of a dataset, in the order of [`s3_config`].
pub fn take(dataset: &Dataset, global_batch: u64, options: ReadOptions, n: usize) -> Vec<Batch> {
    take_batches(dataset, &s3_config(global_batch), None, options, n)
}
