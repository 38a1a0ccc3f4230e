//! A dataset in a bucket: several writers race for every unit while the store fails now and then.
//! The result is what a single writer would have written into a folder.

use std::path::Path;

use crate::support::remote::connect;
use crate::support::{
    check_first_rows, count_items, hash, open, plan, spec, write_dataset, write_unit, writer,
};
use tidemill_store::{Bucket, CommitOutcome, Split};
use tidemill_testing::{Fault, S3Server, seed};

const UNITS: [u64; 5] = [150, 70, 1, 220, 90];

#[test]
fn racing_writers_with_s3_faults_write_the_dataset_of_one_writer() {
    let server = S3Server::start(&["race"]);
    connect(&server, "s3://race");
    let uri = Path::new("s3://race/some/dataset");
    let all = [Fault::Status(500), Fault::Refuse, Fault::LoseAnswer, Fault::Status(503), Fault::None];
    let faults = (0..400).map(|i| all[(hash(i, seed()) % 20).min(4) as usize]);

    let outcomes: Vec<CommitOutcome> = std::thread::scope(|scope| {
        let work = |i: u64| {
            let writer = writer(uri, spec(64, 0.1));
            let units = (0..UNITS.len()).map(|unit| (unit + i as usize) % UNITS.len());
            units.map(|u| write_unit(&writer, u as u64, UNITS[u], 40)).collect::<Vec<_>>()
        };
        let threads: Vec<_> = (0..4).map(|i| scope.spawn(move || work(i))).collect();
        server.fail_next(faults);
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    server.stop_failing();

    let won = outcomes.iter().filter(|outcome| matches!(outcome, CommitOutcome::Committed(_)));
    assert!(count_items(won.map(|o| o.commit().id.to_string())).values().eq(&[1; UNITS.len()]));
    let manifest = writer(uri, spec(64, 0.1)).snapshot(&plan(&UNITS)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (_, alone) = write_dataset(folder.path(), spec(64, 0.1), &UNITS);
    assert_eq!(manifest.digest(), alone.digest());

    let (remote, local) = (open(uri), open(folder.path()));
    assert_eq!(remote.totals().unwrap(), local.totals().unwrap());
    assert_eq!(remote.verify(|_| {}).unwrap().damaged, []);
    let tensors = remote.read_tensors(Split::Train, Bucket::square(64), 1000).unwrap();
    assert_eq!(tensors, local.read_tensors(Split::Train, Bucket::square(64), 1000).unwrap());
    check_first_rows(remote.spec(), Bucket::square(64), &tensors);
}

#[test]
fn missing_dataset_and_missing_bucket_have_different_errors() {
    let server = S3Server::start(&["empty"]);
    for (uri, message) in
        [("s3://empty/x", "there is no dataset at s3://empty/x"), ("s3://gone/x", "no such bucket")]
    {
        connect(&server, uri);
        let error = tidemill_store::Dataset::open(uri).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}
