//! What garbage collection removes from a dataset, and what it keeps.

use std::collections::BTreeSet;
use std::fs;

use crate::support::*;
use tidemill_store::{CommitOutcome, GarbageCollector};

/// Rows of each unit.
const UNITS: [u64; 4] = [300, 1, 77, 500];

#[test]
fn gc_removes_only_unreferenced_objects() {
    let folder = tempfile::tempdir().unwrap();
    let uri = folder.path().to_str().unwrap();
    let gc = |keep, older_than, dry_run| {
        GarbageCollector { keep, older_than: std::time::Duration::from_secs(older_than), dry_run }
            .collect(uri)
            .unwrap()
    };
    let (writer, first) = write_dataset(folder.path(), spec(64, 0.1), &UNITS);
    fs::write(folder.path().join("notes.txt"), "a foreign file").unwrap();
    assert_eq!(gc(1, 0, false).keys, [""; 0]);

    // An orphan, a unit committed after the snapshot, and a snapshot that leaves out two units.
    let orphan = first.commits[0].files[0].path.replace(&first.commits[0].attempt, "lost");
    fs::create_dir_all(folder.path().join(&orphan).parent().unwrap()).unwrap();
    fs::write(folder.path().join(&orphan), [7; 100]).unwrap();
    let CommitOutcome::Committed(later) = write_unit(&writer, 9, 50, 50) else {
        panic!("no other writer writes this unit")
    };
    writer.snapshot(&plan(&UNITS)[1..3]).unwrap();

    assert_eq!(gc(1, 3600, false).objects, 0, "everything is young");
    let only_orphan = gc(2, 0, true);
    assert_eq!((only_orphan.keys, only_orphan.bytes), (vec![orphan.clone()], 100));
    assert!(folder.path().join(&orphan).exists(), "a dry run removes nothing");
    let garbage = gc(1, 0, false);
    assert!(garbage.keys.contains(&orphan) && garbage.keys.contains(&"manifest/1.parquet".to_owned()));
    assert!(garbage.keys.iter().all(|key| !folder.path().join(key).exists()));
    assert!(folder.path().join("notes.txt").exists());
    assert!(writer.committed_units().unwrap().contains(&later.id));
    let dataset = open(folder.path());
    assert_eq!(dataset.totals().unwrap().rows.read, 78);
    assert!(dataset.verify(|_| ()).unwrap().damaged.is_empty());
    // Only units under settings that are no longer in use would be removed.
    let kept: Vec<_> =
        first.commits.iter().filter(|c| writer.committed_units().unwrap().contains(&c.id)).collect();
    assert_eq!(
        kept.len(),
        UNITS.len(),
        "they have the newest snapshot's settings, so they may be wanted again"
    );
}

#[test]
fn gc_keeps_units_of_active_work_under_new_settings() {
    const DAY: std::time::Duration = std::time::Duration::from_secs(24 * 3600);
    let folder = tempfile::tempdir().unwrap();
    let uri = folder.path().to_str().unwrap();
    let (writer, _) = write_dataset(folder.path(), spec(64, 0.1), &UNITS);
    let write = |unit: u64| {
        let mut attempt = writer.begin_unit(&unit_key_with_new_settings(unit, 50, true));
        attempt.write(&batch(&sample_ids(unit, 50), writer.spec())).unwrap();
        let CommitOutcome::Committed(commit) = attempt.commit().unwrap() else {
            panic!("no other writer writes this unit")
        };
        let files = commit.files.iter().map(|file| file.path.clone());
        files.chain([format!("commits/{}.json", commit.id)]).collect::<Vec<_>>()
    };
    let age = |keys: &[String]| {
        for key in keys {
            let file = fs::File::options().write(true).open(folder.path().join(key)).unwrap();
            file.set_modified(std::time::SystemTime::now() - 2 * DAY).unwrap();
        }
    };
    // No unit names the object before there is a snapshot.
    let empty = "empty-caption-of-the-work.bin".to_owned();
    fs::write(folder.path().join(&empty), "tokens").unwrap();
    age(&[empty]);
    let gc = || GarbageCollector { keep: 1, older_than: DAY, dry_run: false }.collect(uri).unwrap().keys;

    let (first, last) = (write(0), write(1));
    age(&first);
    assert_eq!(gc(), [""; 0], "a unit was committed today, so the first may be of the same work");
    age(&last);
    let gone: BTreeSet<String> = gc().into_iter().collect();
    assert_eq!(gone, first.into_iter().chain(last).collect(), "no active work needs these units");
}
