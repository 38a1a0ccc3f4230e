//! The stream over datasets on disk: the same sequence with any options, each row once per epoch,
//! and the right bytes.

use std::path::{Path, PathBuf};

use crate::support::streams::take_batches;
use crate::support::*;
use proptest::prelude::*;
use tidemill_store::shard::footer::read_blocks;
use tidemill_store::stream::{
    Batch, Phase, ReadOptions, SkippedRows, Split, Stream, StreamConfig, StreamState, UnreadableRows,
    single_dataset,
};
use tidemill_store::{Bucket, Dataset, Error};

fn config(seed: u64, global_batch: u64, window: usize) -> StreamConfig {
    StreamConfig {
        seed,
        window,
        split: Split::Train,
        bucket: None,
        phase: Phase::single_dataset(64, global_batch),
    }
}

fn stream(dataset: &Dataset, config: &StreamConfig, state: Option<StreamState>) -> Result<Stream, Error> {
    Stream::open(&single_dataset(dataset), config.clone(), ReadOptions::default(), state)
}

/// A state whose phase begins after `rows` rows.
fn state_after_rows(state: StreamState, rows: u64) -> StreamState {
    let before = state.datasets.keys().map(|name| (name.clone(), [(Bucket::square(64), rows)].into()));
    StreamState { before: before.collect(), batches: 0, ..state }
}

fn usable(dataset: &Dataset, split: Split, resolution: u32) -> Vec<u64> {
    let mut ids = dataset.read_tensors(split, Bucket::square(resolution), usize::MAX).unwrap().sample_ids;
    ids.sort_unstable();
    ids
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    /// On random layouts, each row comes once per epoch with its own bytes, however much is
    /// prefetched, and a stream that resumes after any batch continues as if it had not been
    /// interrupted.
    #[test]
    fn sequence_is_the_same_after_resume_and_with_any_prefetch(
        units in prop::collection::vec(1u64..120, 1..6),
        row_group_rows in 4u32..40,
        global_batch in 1u64..50,
        window in 1usize..8,
        seed: u64,
        resolution in prop::sample::select(RESOLUTIONS.to_vec()),
        prefetch in 0usize..6,
        readers in 1usize..5,
    ) {
        let folder = tempfile::tempdir().unwrap();
        write_dataset(folder.path(), conditioned(spec(row_group_rows, 0.1)), &units);
        let dataset = open(folder.path());
        let rows = dataset.num_rows(Split::Train, Bucket::square(resolution)) as usize;
        prop_assume!(rows > 0);
        let phase = Phase::single_dataset(resolution, global_batch);
        let config = StreamConfig { phase, ..config(seed, global_batch, window) };
        let n = (2 * rows).div_ceil(global_batch as usize) + 1;

        let mut stream = self::stream(&dataset, &config, None).unwrap();
        prop_assert_eq!(stream.num_rows(), rows as u64);
        let (mut states, mut batches) = (vec![stream.state()], Vec::new());
        for _ in 0..n {
            batches.push(stream.next_batch().unwrap());
            states.push(stream.state());
        }
        for (i, batch) in batches.iter().enumerate() {
            prop_assert_eq!((batch.number, batch.bucket), (i as u64, Bucket::square(resolution)));
            prop_assert!(batch.positions.iter().copied().eq(0..global_batch as u32));
            prop_assert_eq!((batch.sample_ids.len(), batch.epochs.len()), (batch.positions.len(), batch.positions.len()));
            check_batch(dataset.spec(), batch);
        }
        let sequence: Vec<(u32, u64)> =
            batches.iter().flat_map(|b| b.epochs.iter().copied().zip(b.sample_ids.iter().copied())).collect();
        for (epoch, rows) in sequence.chunks(rows).take(2).enumerate() {
            prop_assert!(rows.iter().all(|(e, _)| *e as usize == epoch));
            let mut ids: Vec<u64> = rows.iter().map(|(_, id)| *id).collect();
            ids.sort_unstable();
            prop_assert_eq!(ids, usable(&dataset, Split::Train, resolution));
        }

        prop_assert_eq!(&take_batches(&dataset, &config, None, ReadOptions { prefetch, readers, ..ReadOptions::default() }, n), &batches);
        for (i, state) in states.iter().enumerate().step_by(1 + n / 12) {
            let state: StreamState = serde_json::from_str(&serde_json::to_string(state).unwrap()).unwrap();
            let reading = ReadOptions { prefetch, readers, ..ReadOptions::default() };
            prop_assert_eq!(&take_batches(&dataset, &config, Some(state), reading, n - i)[..], &batches[i..]);
        }
    }
}

#[test]
fn rows_do_not_depend_on_batch_size() {
    let folder = tempfile::tempdir().unwrap();
    write_dataset(folder.path(), spec(16, 0.0), &[150, 90]);
    let dataset = open(folder.path());
    let ids = |global_batch, n| -> Vec<u64> {
        take_batches(&dataset, &config(3, global_batch, 4), None, ReadOptions::default(), n)
            .into_iter()
            .flat_map(|b| b.sample_ids)
            .collect()
    };
    assert_eq!(ids(60, 8), ids(7, 69)[..480]);
    let mut stream = self::stream(&dataset, &config(3, 1, 4), None).unwrap();
    for (position, id) in ids(60, 8).into_iter().enumerate() {
        let state = state_after_rows(stream.state(), position as u64);
        let batches = take_batches(&dataset, &config(3, 1, 4), Some(state), ReadOptions::default(), 1);
        assert_eq!(batches[0].sample_ids, [id]);
    }
    assert_eq!(stream.next_batch().unwrap().sample_ids, ids(60, 1)[..1]);
}

#[test]
fn validation_rows_are_not_in_the_training_stream() {
    let folder = tempfile::tempdir().unwrap();
    write_dataset(folder.path(), spec(16, 0.3), &[200, 200]);
    let dataset = open(folder.path());
    let epoch = |split| {
        let config = StreamConfig { split, ..config(1, dataset.num_rows(split, Bucket::square(64)), 3) };
        let mut ids = take_batches(&dataset, &config, None, ReadOptions::default(), 1).remove(0).sample_ids;
        ids.sort_unstable();
        ids
    };
    assert_eq!(epoch(Split::Train), usable(&dataset, Split::Train, 64));
    assert_eq!(epoch(Split::Validation), usable(&dataset, Split::Validation, 64));
    assert!(epoch(Split::Train).iter().all(|id| Split::from_sample_id(*id, 0.3) == Split::Train));
    assert!(epoch(Split::Validation).iter().all(|id| Split::from_sample_id(*id, 0.3) == Split::Validation));
}

#[test]
fn state_of_another_stream_is_refused() {
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    write_dataset(folders[0].path(), spec(16, 0.0), &[100]);
    write_dataset(folders[1].path(), spec(16, 0.0), &[101]);
    let dataset = open(folders[0].path());
    let state = stream(&dataset, &config(1, 8, 2), None).unwrap().state();
    let refuse = |dataset: &Dataset, config, state: &StreamState| match stream(
        dataset,
        &config,
        Some(state.clone()),
    ) {
        Err(Error::State(message)) => message,
        other => panic!("{other:?}"),
    };
    assert!(refuse(&open(folders[1].path()), config(1, 8, 2), &state).contains("another dataset"));
    assert!(refuse(&dataset, config(2, 8, 2), &state).contains("seed 1"));
    assert!(refuse(&dataset, config(1, 8, 3), &state).contains("shuffle_window 2"));
    let larger = StreamConfig { phase: Phase::single_dataset(128, 8), ..config(1, 8, 2) };
    assert!(refuse(&dataset, larger, &state).contains("resolution 64"));
    let mut later = state.clone();
    later.datasets.values_mut().for_each(|snapshot| snapshot.manifest = 7);
    assert!(stream(&dataset, &config(1, 8, 2), Some(later.clone())).is_ok(), "the newest says the same");
    later.datasets.values_mut().for_each(|snapshot| snapshot.digest = "another".into());
    assert!(refuse(&dataset, config(1, 8, 2), &later).contains("snapshot 7"));
    assert!(refuse(&dataset, config(1, 9, 2), &state).contains("global_batch 8"));
    let renamed = StreamState { datasets: [("x".into(), state.datasets["dataset"].clone())].into(), ..state };
    assert!(refuse(&dataset, config(1, 8, 2), &renamed).contains("another dataset `dataset`"));
    assert!(stream(&dataset, &config(1, 0, 2), None).is_err());
}

#[test]
fn resumed_stream_keeps_its_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    let (writer, _) = write_dataset(folder.path(), spec(16, 0.0), &[100]);
    let before = open(folder.path());
    let mut stream = self::stream(&before, &config(1, 8, 2), None).unwrap();
    stream.next_batch().unwrap();
    let state = stream.state();
    write_unit(&writer, 1, 50, 50);
    writer.snapshot(&plan(&[100, 50])).unwrap();
    let after = open(folder.path());
    assert!(
        after.num_rows(Split::Train, Bucket::square(64)) > before.num_rows(Split::Train, Bucket::square(64))
    );
    let mut resumed = self::stream(&after, &config(1, 8, 2), Some(state)).unwrap();
    for _ in 0..30 {
        assert_eq!(resumed.next_batch().unwrap(), stream.next_batch().unwrap());
    }
    assert_eq!(
        self::stream(&after, &config(1, 8, 2), None).unwrap().num_rows(),
        after.num_rows(Split::Train, Bucket::square(64))
    );
}

#[test]
fn resumed_stream_reads_a_rewritten_unit() {
    let folder = tempfile::tempdir().unwrap();
    let (writer, first) = write_dataset(folder.path(), spec(16, 0.0), &[100]);
    let mut whole = stream(&open(folder.path()), &config(1, 8, 2), None).unwrap();
    let state = whole.state();
    let expected: Vec<Batch> = (0..20).map(|_| whole.next_batch().unwrap()).collect();
    drop(whole);
    // Do what the error message advises for a damaged unit.
    let commit = format!("commits/{}.json", first.commits[0].id);
    for path in first.commits[0].files.iter().map(|file| &file.path).chain([&commit]) {
        std::fs::remove_file(folder.path().join(path)).unwrap();
    }
    write_unit(&writer, 0, 100, 7);
    assert_eq!(writer.snapshot(&plan(&[100])).unwrap().number, first.number + 1);
    let mut resumed = stream(&open(folder.path()), &config(1, 8, 2), Some(state)).unwrap();
    for expected in expected {
        assert_eq!(resumed.next_batch().unwrap(), expected);
    }
    assert_eq!(resumed.state().datasets["dataset"].manifest, first.number + 1);
}

/// Writes a dataset of one unit with a damaged last row in its last block of latents. Returns the
/// sample id of the row and its file.
fn damaged(folder: &Path) -> (u64, PathBuf) {
    let (_, manifest) = write_dataset(folder, spec(16, 0.0), &[100]);
    let last = open(folder).read_tensors(Split::Train, Bucket::square(64), usize::MAX).unwrap().sample_ids;
    let file = manifest.commits[0].files.iter().find(|file| file.group.to_string() == "latents-64").unwrap();
    let path = folder.join(&file.path);
    let mut bytes = std::fs::read(&path).unwrap();
    let blocks = read_blocks(&file.footer(), open(folder).location(), manifest.commits[0].id).unwrap();
    let block = blocks.last().unwrap();
    bytes[(block.offset + block.bytes) as usize - 1] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    (*last.last().unwrap(), path)
}

#[test]
fn damaged_block_ends_the_stream_and_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (_, path) = damaged(folder.path());
    // In a batch of all rows, the damage is found where rows are read by range.
    for global_batch in [8, 70] {
        let mut stream = stream(&open(folder.path()), &config(1, global_batch, 1), None).unwrap();
        let error = (0..100).find_map(|_| stream.next_batch().err()).expect("it is found within an epoch");
        assert!(
            matches!(&error, Error::Corrupt { path: named, .. } if *named == path.to_str().unwrap()),
            "{error}"
        );
    }
}

#[test]
fn truncated_file_ends_the_stream_and_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (_, manifest) = write_dataset(folder.path(), spec(16, 0.0), &[100]);
    let mut stream = stream(&open(folder.path()), &config(1, 8, 2), None).unwrap();
    stream.next_batch().unwrap();
    let file = manifest.commits[0].files.iter().find(|file| file.group.to_string() == "text").unwrap();
    let path = folder.path().join(&file.path);
    // No thread reads now, because all prefetched batches are finished. Their row groups are mapped
    // into memory.
    std::thread::sleep(std::time::Duration::from_millis(500));
    std::fs::File::options().write(true).open(&path).unwrap().set_len(4).unwrap();
    let error = (0..100).find_map(|_| stream.next_batch().err()).expect("it is found within an epoch");
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
}

#[test]
fn unreadable_rows_can_be_skipped_and_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let whole: Vec<Batch> = {
        write_dataset(folder.path(), spec(16, 0.0), &[100]);
        take_batches(&open(folder.path()), &config(1, 8, 1), None, ReadOptions::default(), 20)
    };
    let folder = tempfile::tempdir().unwrap();
    let (id, path) = damaged(folder.path());
    let reading = ReadOptions { unreadable: UnreadableRows::Skip, ..ReadOptions::default() };
    let mut stream =
        Stream::open(&single_dataset(&open(folder.path())), config(1, 8, 1), reading, None).unwrap();
    let mut missing = 0;
    for expected in whole {
        let batch = stream.next_batch().unwrap();
        assert!(!batch.sample_ids.contains(&id));
        let kept = batch.positions.iter().map(|position| expected.sample_ids[*position as usize]);
        assert!(kept.eq(batch.sample_ids.iter().copied()), "the others are where they were");
        missing += 8 - batch.positions.len() as u64;
    }
    let skipped: SkippedRows = stream.skipped_rows();
    assert!(missing >= 2, "two epochs have passed");
    // Prefetched batches count too: less than an epoch, so the row counts at most once more.
    let counted = skipped.values().sum::<u64>();
    assert!((missing..=missing + 1).contains(&counted), "{counted} counted, {missing} missing");
    assert!(skipped.keys().all(|why| why.contains(path.to_str().unwrap())), "{skipped:?}");
}
