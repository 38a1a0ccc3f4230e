//! The contents of a dataset: each row is in its bucket, split and block, with its own bytes.

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::UInt64Type;
use proptest::prelude::*;
use tidemill_store::dataset::commit::FileEntry;
use tidemill_store::shard::footer::read_blocks;
use tidemill_store::{Bucket, ColumnGroup, Split};

use super::UNITS;
use crate::support::*;

fn all_ids(units: &[u64]) -> Vec<u64> {
    units.iter().zip(0..).flat_map(|(rows, unit)| sample_ids(unit, *rows)).collect()
}

#[test]
fn every_kept_row_is_in_its_split_and_bucket() {
    let folder = tempfile::tempdir().unwrap();
    let spec = spec(64, 0.2);
    write_dataset(folder.path(), spec.clone(), &UNITS);
    let dataset = open(folder.path());
    assert_eq!(dataset.spec(), &spec);
    assert_eq!(dataset.empty_caption(), tensor(0, "text", spec.text.bytes()));

    let ids = all_ids(&UNITS);
    let totals = dataset.totals().unwrap();
    let statuses = count_items(ids.iter().map(|id| (row_outcome(*id).0, row_outcome(*id).1)));
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
            let usable = |id: &&u64| {
                row_outcome(**id).2.contains(&resolution) && Split::from_sample_id(**id, 0.2) == split
            };
            let expected: Vec<u64> = ids.iter().filter(usable).copied().collect();
            let tensors = dataset.read_tensors(split, bucket, usize::MAX).unwrap();
            assert_eq!(tensors.sample_ids, expected);
            assert_eq!(by_bucket[&bucket], expected.len() as u64);
            check_first_rows(&spec, bucket, &tensors);
            assert_eq!(dataset.read_tensors(split, bucket, 5).unwrap().sample_ids, expected[..5]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    /// With several buckets and any units, batches and blocks, each kept row is in its own bucket
    /// and split with its own text, and nowhere else.
    #[test]
    fn every_kept_row_is_in_its_aspect_bucket(
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
                    check_first_rows(&spec, own, &tensors);
                }
            }
        }
    }
}

#[test]
fn rows_file_lists_every_row_with_its_outcome() {
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
fn blocks_with_the_same_number_hold_the_same_rows() {
    let folder = tempfile::tempdir().unwrap();
    let (_, manifest) = write_dataset(folder.path(), spec(64, 0.0), &UNITS);
    let dataset = open(folder.path());
    for commit in &manifest.commits {
        let text = commit.file(ColumnGroup::Text(Split::Train, tidemill_store::TextColumn::FIRST));
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
