//! Datasets as they are written, raced for, repeated, damaged and read back.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail by panicking")]

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::UInt64Type;
use proptest::prelude::*;
use support::*;
use tidemill_store::dataset::commit::FileEntry;
use tidemill_store::shard::footer::read_blocks;
use tidemill_store::{
    Bucket, ColumnGroup, CommitOutcome, Dataset, DatasetSpec, DatasetWriter, Dtype, Error, Manifest, Split,
    TensorSpec, UnitKey,
};
use tidemill_testing::seed;

const UNITS: [u64; 4] = [300, 1, 77, 500];

fn all_ids(units: &[u64]) -> Vec<u64> {
    units.iter().zip(0..).flat_map(|(rows, unit)| sample_ids(unit, *rows)).collect()
}

#[test]
fn every_row_is_where_it_belongs() {
    let folder = tempfile::tempdir().unwrap();
    let spec = spec(64, 0.2);
    write_dataset(folder.path(), spec.clone(), &UNITS);
    let dataset = open(folder.path());
    assert_eq!(dataset.spec(), &spec);
    assert_eq!(dataset.empty_caption(), tensor(0, "text", spec.text.bytes()));

    let ids = all_ids(&UNITS);
    let totals = dataset.totals().unwrap();
    let statuses = tally(ids.iter().map(|id| (fate(*id).0, fate(*id).1)));
    let count = |status, reason| statuses.get(&(status, reason)).copied().unwrap_or(0) as u64;
    assert_eq!(totals.rows.read, ids.len() as u64);
    assert_eq!(totals.rows.kept, count("kept", None));
    for filter in ["min_side", "caption_length"] {
        assert_eq!(totals.rows.rejected[filter], count("rejected", Some(filter)));
    }
    assert_eq!(
        totals.rows.quarantined["damaged"],
        count("quarantined", Some("damaged: the file ends early"))
    );
    assert!(totals.rows.is_consistent());

    for (split, by_bucket) in [(Split::Train, &totals.training), (Split::Validation, &totals.validation)] {
        for resolution in RESOLUTIONS {
            let bucket = Bucket::square(resolution);
            let usable =
                |id: &&u64| fate(**id).2.contains(&resolution) && Split::from_sample_id(**id, 0.2) == split;
            let expected: Vec<u64> = ids.iter().filter(usable).copied().collect();
            let tensors = dataset.read_tensors(split, bucket, usize::MAX).unwrap();
            assert_eq!(tensors.sample_ids, expected);
            assert_eq!(by_bucket[&bucket], expected.len() as u64);
            check_tensors(&spec, bucket, &expected, &tensors.latents, &tensors.text);
            assert_eq!(dataset.read_tensors(split, bucket, 5).unwrap().sample_ids, expected[..5]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    /// With several buckets, whatever the units, batches and blocks: each kept row is in its own bucket and split
    /// with its own text, and nowhere else.
    #[test]
    fn every_row_is_in_its_bucket(
        units in prop::collection::vec(1u64..200, 1..4), row_group_rows in 4u32..60, share in 0.0..0.5f64,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let spec = bucketed(spec(row_group_rows, share));
        write_dataset(folder.path(), spec.clone(), &units);
        let dataset = open(folder.path());
        prop_assert_eq!(dataset.spec(), &spec);
        prop_assert_eq!(dataset.buckets(64).len(), 5);
        prop_assert!(dataset.verify(|_| ()).unwrap().damaged.is_empty());
        for resolution in RESOLUTIONS {
            for (own, split) in dataset.buckets(resolution).into_iter().flat_map(|b| Split::ALL.map(|s| (b, s))) {
                let belongs = |id: &u64| bucket(&spec, *id, resolution) == Some(own) && spec.split(*id) == split;
                let expected: Vec<u64> = all_ids(&units).into_iter().filter(belongs).collect();
                prop_assert_eq!(dataset.num_rows(split, own), expected.len() as u64);
                if !expected.is_empty() {
                    let tensors = dataset.read_tensors(split, own, usize::MAX).unwrap();
                    prop_assert_eq!(&tensors.sample_ids, &expected);
                    check_tensors(&spec, own, &expected, &tensors.latents, &tensors.text);
                }
            }
        }
    }
}

#[test]
fn the_rows_tell_what_became_of_each() {
    let folder = tempfile::tempdir().unwrap();
    write_dataset(folder.path(), spec(64, 0.2), &UNITS);
    let dataset = open(folder.path());
    let batches: Vec<RecordBatch> = dataset.read_rows(&[]).collect::<Result<_, _>>().unwrap();
    let names: Vec<_> = batches[0].schema().fields().iter().map(|f| f.name().clone()).collect();
    assert_eq!(names, ["sample_id", "key", "caption", "score", "status", "reason", "size_64", "size_128"]);
    let ids: Vec<u64> =
        batches.iter().flat_map(|b| b["sample_id"].as_primitive::<UInt64Type>().values().to_vec()).collect();
    assert_eq!(ids, all_ids(&UNITS));
    let few: Vec<RecordBatch> = dataset.read_rows(&["caption", "status"]).collect::<Result<_, _>>().unwrap();
    assert_eq!(few[0].num_columns(), 2);
    let captions = few.iter().flat_map(|b| {
        b["caption"].as_string::<i32>().iter().map(|c| c.map(str::to_owned)).collect::<Vec<_>>()
    });
    assert!(captions.eq(ids.iter().map(|id| (id % 10 != 0).then(|| format!("caption “{id}”")))));
}

#[test]
fn blocks_of_one_number_hold_the_same_stretch_of_rows() {
    let folder = tempfile::tempdir().unwrap();
    let (_, manifest) = write_dataset(folder.path(), spec(64, 0.0), &UNITS);
    let dataset = open(folder.path());
    for commit in &manifest.commits {
        let text = commit.file(ColumnGroup::Text(Split::Train));
        let Some(text) = text else { continue };
        let blocks = |file: &FileEntry| read_blocks(&file.footer(), dataset.location(), commit.id).unwrap();
        let text = blocks(text);
        let full = text.iter().rev().skip(1).all(|block| block.rows == 64);
        assert!(full && text.iter().map(|b| b.number).eq(0..text.len() as u32));
        for resolution in RESOLUTIONS {
            let latents = commit.file(ColumnGroup::Latents(Split::Train, Bucket::square(resolution)));
            for block in latents.map(blocks).unwrap_or_default() {
                assert!(block.rows <= text[block.number as usize].rows);
            }
        }
    }
}

/// Checksums of all files, by unit and group.
fn checksums(writer: &DatasetWriter) -> Vec<(String, String, String)> {
    let commits = writer.commits(&writer.committed_units().unwrap()).unwrap();
    let files = commits.iter().flat_map(|c| c.files.iter().map(move |f| (c, f)));
    files.map(|(c, f)| (c.id.to_string(), f.group.to_string(), f.xxh3.to_string())).collect()
}

#[test]
fn the_same_rows_give_the_same_bytes_however_they_are_cut() {
    let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let bytes = folders.iter().zip([1, 50, 1000]).map(|(folder, batch_rows)| {
        let writer = writer(folder.path(), spec(64, 0.1));
        write_unit(&writer, 0, 400, batch_rows);
        (checksums(&writer), writer.snapshot(&plan(&[400])).unwrap().digest())
    });
    let bytes: Vec<_> = bytes.collect();
    assert!(bytes[0].0.len() == 7 && bytes.iter().all(|other| *other == bytes[0]));
}

#[test]
fn of_racing_writers_one_commits() {
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
fn a_rerun_does_only_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let (writer, before) = write_dataset(folder.path(), spec(64, 0.1), &UNITS);
    // Nor do settings say anything new that name the same units.
    let renamed = DatasetSpec { rows: serde_json::json!({ "filter": {} }), ..spec(64, 0.1) };
    assert_eq!(renamed.digest(), spec(64, 0.1).digest());
    for writer in [&writer, &support::writer(folder.path(), renamed)] {
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
fn the_snapshot_holds_what_the_plan_asks_for() {
    let folder = tempfile::tempdir().unwrap();
    let (writer, _) = write_dataset(folder.path(), spec(64, 0.1), &UNITS);
    let fewer = writer.snapshot(&plan(&UNITS)[1..3]).unwrap();
    assert_eq!((fewer.number, fewer.commits.len()), (2, 2));
    let dataset = open(folder.path());
    assert_eq!(dataset.totals().unwrap().rows.read, 78);
    assert_eq!(dataset.at_snapshot(1).unwrap().totals().unwrap().rows.read, 878);
}

#[test]
fn what_no_commit_names_is_not_there() {
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

fn flip(path: &Path, at: u64) {
    let mut bytes = fs::read(path).unwrap();
    let at = (at % bytes.len() as u64) as usize;
    bytes[at] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_flipped_byte_is_found_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let (_, manifest) = write_dataset(folder.path(), spec(64, 0.1), &UNITS);
    let dataset = open(folder.path());
    assert!(dataset.verify(|_| ()).unwrap().damaged.is_empty());
    for (commit, file) in manifest.commits.iter().flat_map(|c| c.files.iter().map(move |f| (c, f))) {
        let path = folder.path().join(&file.path);
        let at = hash(seed(), file.bytes);
        flip(&path, at);
        let damaged = dataset.verify(|_| ()).unwrap().damaged;
        assert_eq!(
            damaged.iter().map(|d| PathBuf::from(&d.path)).collect::<Vec<_>>(),
            std::slice::from_ref(&path)
        );
        assert_eq!(damaged[0].commit, format!("commits/{}.json", commit.id));
        flip(&path, at);
    }

    let text = folder.path().join(&manifest.commits[0].file(ColumnGroup::Text(Split::Train)).unwrap().path);
    let rows = &manifest.commits[0].file(ColumnGroup::Rows).unwrap().path;
    flip(&text, 500);
    let error = dataset.read_tensors(Split::Train, Bucket::square(64), usize::MAX).unwrap_err();
    assert!(matches!(&error, Error::Corrupt { path, .. } if *path == text.to_str().unwrap()), "{error}");
    fs::remove_file(&text).unwrap();
    assert!(dataset.verify(|_| ()).unwrap().damaged[0].problem.contains("cannot read"));
    fs::write(&text, b"PAR1").unwrap();
    assert_eq!(dataset.verify(|_| ()).unwrap().damaged.len(), 1);
    // What goes on beyond its end is no Parquet file any more.
    let (path, bytes) = (&text, fs::read(folder.path().join(rows)).unwrap());
    fs::write(folder.path().join(rows), [&bytes[..], b"more"].concat()).unwrap();
    fs::remove_file(path).unwrap();
    let damaged = dataset.verify(|_| ()).unwrap().damaged;
    assert!(damaged.iter().any(|d| d.problem.contains("were committed")) && damaged.len() == 2);
}

#[test]
fn settings_that_cannot_be_written_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let mut other = spec(64, 0.1);
    let empty = vec![0; other.text.bytes()];
    other.latents.insert(Bucket::square(64), TensorSpec { dtype: Dtype::F8E4m3, shape: vec![8, 2, 2] });
    let message =
        DatasetWriter::open(folder.path().to_str().unwrap(), other, &empty).unwrap_err().to_string();
    assert!(["f8_e4m3", "f16"].iter().all(|part| message.contains(part)), "{message}");
}

#[test]
fn what_is_no_dataset_is_said_to_be_none() {
    let folder = tempfile::tempdir().unwrap();
    let uri = folder.path().to_str().unwrap();
    assert!(matches!(Dataset::open(uri), Err(Error::NoDataset { .. })));
    let writer = writer(folder.path(), spec(64, 0.0));
    assert!(matches!(Dataset::open(uri), Err(Error::NoManifest { .. })));
    write_unit(&writer, 0, 40, 40);
    let manifest = writer.snapshot(&plan(&[40])).unwrap();
    let dataset = Dataset::open(uri).unwrap();
    assert_eq!(dataset.manifest().unwrap(), &manifest);
    let message = dataset.read_tensors(Split::Validation, Bucket::square(64), 1).unwrap_err().to_string();
    assert!(message.contains("no validation rows at resolution 64"), "{message}");
    let message = dataset.read_tensors(Split::Train, Bucket::square(96), 1).unwrap_err().to_string();
    assert!(message.contains("prepared for 64, 128"), "{message}");
    fs::write(folder.path().join("dataset.json"), "{\"format\": 1}").unwrap();
    let message = Dataset::open(uri).unwrap_err().to_string();
    assert!(message.contains("dataset.json") && message.contains("format 1"), "{message}");
    fs::write(folder.path().join("manifest/2.parquet"), "PAR1").unwrap();
    fs::write(folder.path().join("dataset.json"), "[]").unwrap();
    assert!(matches!(Dataset::open(uri), Err(Error::Format { .. })));
}

#[test]
fn what_another_version_wrote_is_refused_with_advice() {
    let folder = tempfile::tempdir().unwrap();
    let (writer, manifest) = write_dataset(folder.path(), spec(64, 0.0), &[40]);
    // Names of fields as another version might have them; as long, so that Parquet's offsets stay right.
    let rename = |path: &str, from: &str, to: &str| {
        let path = folder.path().join(path);
        let mut bytes = fs::read(&path).unwrap();
        let at = bytes.windows(from.len()).position(|part| part == from.as_bytes()).unwrap();
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        fs::write(&path, bytes).unwrap();
    };
    let id = &manifest.commits[0].id;
    rename(&format!("commits/{id}.json"), "\"span\"", "\"rows\"");
    let message = writer.commits([id]).unwrap_err().to_string();
    assert!(message.contains("`span`") && message.contains("into another output"), "{message}");
    rename("manifest/1.parquet", "\"row_group_rows\"", "\"row_group_size\"");
    let message = Dataset::open(folder.path().to_str().unwrap()).unwrap_err().to_string();
    assert!(message.contains("`row_group_rows`") && message.contains("into another output"), "{message}");
}

#[test]
fn batches_of_another_form_are_refused_by_column() {
    let folder = tempfile::tempdir().unwrap();
    let writer = writer(folder.path(), spec(64, 0.0));
    let good = batch(&sample_ids(0, 50), writer.spec());
    let refuse =
        |batch: &RecordBatch| writer.begin_unit(&unit_key(0, 50)).write(batch).unwrap_err().to_string();
    for name in ["sample_id", "status", "reason", "latents_128", "size_64", "text"] {
        let mut without = good.clone();
        without.remove_column(good.schema().index_of(name).unwrap());
        let message = refuse(&without);
        assert!(message.contains(&format!("`{name}`")) && message.contains("missing"), "{message}");
    }
    let mut other = spec(64, 0.0);
    other.latents.insert(Bucket::square(64), tidemill_store::TensorSpec::f16([4, 2, 4]));
    let message = refuse(&batch(&sample_ids(0, 50), &other));
    assert!(message.contains("latents_64") && message.contains("[4, 2, 4]"), "{message}");
    let message = refuse(&batch(&sample_ids(0, 50), &bucketed(spec(64, 0.0))));
    assert!(message.contains("`size_64`") && message.contains("none of the dataset's buckets"), "{message}");
    let mut columns = good.columns().to_vec();
    columns[4] = std::sync::Arc::new(arrow::array::StringArray::from(vec!["lost"; 50]));
    let message = refuse(&RecordBatch::try_new(good.schema(), columns).unwrap());
    assert!(message.contains("`status`") && message.contains("`lost`"), "{message}");
    assert!(good["text"].null_count() > 0);
}

/// The same rows with some tensors left out, as a stage gives them that knows of an earlier run.
fn without(batch: &RecordBatch, left_out: &[&str]) -> RecordBatch {
    let mut columns = batch.columns().to_vec();
    for name in left_out {
        let i = batch.schema().index_of(name).unwrap();
        columns[i] = arrow::array::new_null_array(columns[i].data_type(), batch.num_rows());
    }
    RecordBatch::try_new(batch.schema(), columns).unwrap()
}

#[test]
fn tensors_that_are_still_good_are_copied() {
    for new_text in [true, false] {
        let mut good = vec!["latents_128", "latents_64"];
        good.extend((!new_text).then_some("text"));
        let folder = tempfile::tempdir().unwrap();
        let (_, before) = write_dataset(folder.path(), spec(64, 0.2), &UNITS);
        let writer = writer(folder.path(), spec(64, 0.2));
        assert!(writer.find_reusable(&unit_key(0, UNITS[0])).unwrap().is_none(), "the same unit is no help");
        let keys: Vec<_> = UNITS.iter().zip(0..).map(|(rows, unit)| changed(unit, *rows, new_text)).collect();
        for (key, unit) in keys.iter().zip(0..) {
            let ids = sample_ids(unit, UNITS[unit as usize]);
            let known = writer.find_reusable(key).unwrap().unwrap();
            assert!(known.tensors.iter().eq(&good) && known.rows.num_rows() == ids.len());
            let mut attempt = writer.begin_unit(key);
            for ids in ids.chunks(37) {
                attempt.write(&without(&batch(ids, writer.spec()), &good)).unwrap();
            }
            attempt.commit().unwrap();
        }
        let plan: Vec<_> = keys.iter().map(UnitKey::id).collect();
        let after = writer.snapshot(&plan).unwrap();
        let content = |manifest: &Manifest| {
            let files = manifest.commits.iter().flat_map(|commit| &commit.files);
            files.map(|file| (file.group, file.rows, file.xxh3.to_string())).collect::<Vec<_>>()
        };
        assert_eq!(content(&after), content(&before), "the same bytes as if all had been computed");
    }
}

#[test]
fn tensors_that_nobody_has_are_missed() {
    let folder = tempfile::tempdir().unwrap();
    write_dataset(folder.path(), spec(64, 0.2), &UNITS);
    let writer = writer(folder.path(), spec(64, 0.2));
    let batch = without(&batch(&sample_ids(0, UNITS[0]), writer.spec()), &["text"]);
    let error = writer.begin_unit(&changed(0, UNITS[0], true)).write(&batch).unwrap_err();
    assert!(error.to_string().contains("`text` of the encoded batch: is null in a kept row"), "{error}");
}
