//! Commits and snapshots: racing writers, repeated runs, and files that no commit names.

use std::collections::BTreeSet;
use std::fs;

use tidemill_store::{CommitOutcome, DatasetSpec, DatasetWriter};

use super::UNITS;
use crate::support::*;

#[test]
fn file_bytes_do_not_depend_on_batch_size() {
    let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let bytes = folders.iter().zip([1, 50, 1000]).map(|(folder, batch_rows)| {
        let writer = writer(folder.path(), spec(64, 0.1));
        write_unit(&writer, 0, 400, batch_rows);
        (checksums(&writer), writer.snapshot(&plan(&[400])).unwrap().digest())
    });
    let bytes: Vec<_> = bytes.collect();
    assert!(bytes[0].0.len() == 7 && bytes.iter().all(|other| *other == bytes[0]));
}

/// Checksums of all files, with unit and column group.
fn checksums(writer: &DatasetWriter) -> Vec<(String, String, String)> {
    let commits = writer.commits(&writer.committed_units().unwrap()).unwrap();
    let files = commits.iter().flat_map(|c| c.files.iter().map(move |f| (c, f)));
    files.map(|(c, f)| (c.id.to_string(), f.group.to_string(), f.xxh3.to_string())).collect()
}

#[test]
fn one_of_several_racing_writers_commits() {
    let folder = tempfile::tempdir().unwrap();
    let outcomes: Vec<CommitOutcome> = std::thread::scope(|scope| {
        let write = || write_unit(&writer(folder.path(), spec(64, 0.1)), 0, 200, 33);
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(write)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let winners: Vec<_> = outcomes.iter().filter(|o| matches!(o, CommitOutcome::Committed(_))).collect();
    assert_eq!(winners.len(), 1);
    assert!(outcomes.iter().all(|outcome| outcome.commit() == winners[0].commit()));

    let manifests: Vec<_> = std::thread::scope(|scope| {
        let snapshot = || writer(folder.path(), spec(64, 0.1)).snapshot(&plan(&[200])).unwrap();
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(snapshot)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(manifests.iter().all(|m| m.number == 1 && m.commits == [winners[0].commit().clone()]));
    let dataset = open(folder.path());
    assert_eq!(dataset.totals().unwrap().rows.read, 200);
    assert!(dataset.verify(|_| ()).unwrap().damaged.is_empty());
}

#[test]
fn rerun_writes_only_missing_units() {
    let folder = tempfile::tempdir().unwrap();
    let (writer, before) = write_dataset(folder.path(), spec(64, 0.1), &UNITS);
    // Settings under another name that produce the same units change nothing either.
    let renamed = DatasetSpec { rows: serde_json::json!({ "filter": {} }), ..spec(64, 0.1) };
    assert_eq!(renamed.digest(), spec(64, 0.1).digest());
    for writer in [&writer, &crate::support::writer(folder.path(), renamed)] {
        let snapshot = writer.snapshot(&plan(&UNITS)).unwrap();
        assert_eq!(snapshot.number, 1, "nothing is new, so there is no new snapshot");
    }
    let lost = &plan(&UNITS)[2];
    fs::remove_file(folder.path().join(format!("commits/{lost}.json"))).unwrap();

    let committed = writer.committed_units().unwrap();
    let missing: Vec<u64> = (0..4).filter(|i| !committed.contains(&plan(&UNITS)[*i as usize])).collect();
    assert_eq!(missing, [2]);
    write_unit(&writer, 2, UNITS[2], 20);
    let after = writer.snapshot(&plan(&UNITS)).unwrap();
    assert_eq!((after.number, after.digest()), (2, before.digest()));
    let changed: BTreeSet<_> =
        before.commits.iter().zip(&after.commits).filter(|(a, b)| a != b).map(|(a, _)| &a.id).collect();
    assert_eq!(changed, BTreeSet::from([lost]));
    assert_eq!(open(folder.path()).snapshot_number(), 2);
}

#[test]
fn snapshot_holds_the_units_of_the_plan() {
    let folder = tempfile::tempdir().unwrap();
    let (writer, _) = write_dataset(folder.path(), spec(64, 0.1), &UNITS);
    let fewer = writer.snapshot(&plan(&UNITS)[1..3]).unwrap();
    assert_eq!((fewer.number, fewer.commits.len()), (2, 2));
    let dataset = open(folder.path());
    assert_eq!(dataset.totals().unwrap().rows.read, 78);
    assert_eq!(dataset.at_snapshot(1).unwrap().totals().unwrap().rows.read, 878);
}

#[test]
fn files_without_a_commit_are_invisible() {
    let folder = tempfile::tempdir().unwrap();
    let (writer, manifest) = write_dataset(folder.path(), spec(64, 0.1), &UNITS);
    let totals = open(folder.path()).totals().unwrap();
    let mut attempt = writer.begin_unit(&unit_key(9, 100));
    attempt.write(&batch(&sample_ids(9, 100), writer.spec())).unwrap();
    drop(attempt);
    let winner = folder.path().join(&manifest.commits[0].files[0].path);
    let orphan = winner.parent().unwrap().with_file_name("another-attempt");
    fs::create_dir(&orphan).unwrap();
    fs::copy(&winner, orphan.join("rows.parquet")).unwrap();
    assert_eq!(writer.snapshot(&plan(&UNITS)).unwrap().number, 1);
    let dataset = open(folder.path());
    assert_eq!(
        (dataset.totals().unwrap(), dataset.verify(|_| ()).unwrap().files),
        (totals.clone(), totals.files)
    );
}
