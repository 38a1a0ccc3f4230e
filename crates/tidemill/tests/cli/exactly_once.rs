//! Exactly-once: after any number of kills, and with several processes at the same time, the
//! dataset is the one that a single undisturbed process makes, file by file.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::{self, command, spawn_silent, tidemill_json, write_run};

const ROWS: usize = 512;
const KILLS: usize = 30;

/// The arguments for preprocessing into `output`, with one thread, because the bytes of tensors
/// depend on the number of threads.
fn arguments<'a>(run: &'a str, output: &'a str) -> [&'a str; 6] {
    ["preprocess", run, "--set", "engine.encode.threads=1", "--set", output]
}

fn output(folder: &Path, name: &str) -> String {
    format!("output={}", folder.join(name).display())
}

fn digest(folder: &Path, name: &str) -> String {
    common::verified_digest(&folder.join(name).display().to_string(), ROWS)
}

/// Random numbers from 0 to 1, from a seed that is printed.
fn random_numbers() -> impl Iterator<Item = f64> {
    let seed = tidemill_testing::seed();
    (0u64..).map(move |i| {
        let hash = blake3::hash(format!("{seed} {i}").as_bytes());
        f64::from(u32::from_le_bytes(*hash.as_bytes().first_chunk().unwrap())) / f64::from(u32::MAX)
    })
}

#[test]
fn dataset_is_bit_exact_after_thirty_kills() {
    let folder = tempfile::tempdir().unwrap();
    let run = write_run(folder.path(), ROWS);
    let start = Instant::now();
    assert_eq!(tidemill_json(&arguments(&run, &output(folder.path(), "whole"))).0, 0);
    let (whole, lifetime) = (digest(folder.path(), "whole"), start.elapsed());

    let (mut killed, mut finished) = (0, 0);
    let mut random = random_numbers();
    while killed < KILLS {
        let name = format!("killed-{finished}");
        let into = output(folder.path(), &name);
        let mut child = spawn_silent(command(&arguments(&run, &into)));
        let end = Instant::now() + lifetime.mul_f64(0.6 * random.next().unwrap());
        while Instant::now() < end && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        match child.try_wait().unwrap() {
            Some(status) => {
                assert!(status.success(), "{status}");
                assert_eq!(digest(folder.path(), &name), whole);
                finished += 1;
            }
            None => {
                child.kill().unwrap();
                child.wait().unwrap();
                killed += 1;
            }
        }
    }
    let name = format!("killed-{finished}");
    assert_eq!(tidemill_json(&arguments(&run, &output(folder.path(), &name))).0, 0);
    assert_eq!(digest(folder.path(), &name), whole);
    println!("{killed} kills over {} datasets", finished + 1);
}

#[test]
fn two_processes_at_once_make_the_same_dataset_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let run = write_run(folder.path(), ROWS);
    let (alone, together) = (output(folder.path(), "alone"), output(folder.path(), "together"));
    assert_eq!(tidemill_json(&arguments(&run, &alone)).0, 0);
    let children: Vec<_> = (0..2)
        .map(|_| {
            let mut command = command(&arguments(&run, &together));
            command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    assert_eq!(digest(folder.path(), "together"), digest(folder.path(), "alone"));
}
