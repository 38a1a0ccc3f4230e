//! Streams over several datasets with several buckets: the same global batches for any world size
//! and number of readers, before and after a resume and a change of phase.

use std::collections::BTreeMap;
use std::path::Path;

use crate::support::*;
use proptest::prelude::*;
use tidemill_store::stream::{
    Batch, Datasets, MixAmount, Phase, Rank, ReadOptions, Split, Stream, StreamConfig, StreamState, WorldSize,
};
use tidemill_store::{Bucket, DatasetSpec, Error};
use tidemill_testing::seed;

/// Writes datasets with several buckets that share no sample. `units` holds the rows of each of
/// their units.
fn datasets(folder: &Path, row_group_rows: u32, units: &[Vec<u64>]) -> Datasets {
    let mut next = 0;
    let dataset = |(units, name): (&Vec<u64>, char)| {
        let folder = folder.join(name.to_string());
        let writer = writer(&folder, bucketed(spec(row_group_rows, 0.0)));
        let mut keys = Vec::new();
        for rows in units {
            write_unit(&writer, next, *rows, 40);
            keys.push(unit_key(next, *rows).id());
            next += 1;
        }
        writer.snapshot(&keys).unwrap();
        (name.to_string(), open(&folder))
    };
    units.iter().zip('a'..).map(dataset).collect()
}

/// Rows of a global batch with their bytes, by position.
type Rows = BTreeMap<u32, (u64, u32, Vec<u8>, Vec<u8>)>;

fn rows(batch: &Batch) -> Rows {
    let n = batch.positions.len();
    let part = |bytes: &[u8], i| bytes[bytes.len() / n * i..][..bytes.len() / n].to_vec();
    let row = |i| (batch.sample_ids[i], batch.epochs[i], part(&batch.latents, i), part(&batch.text[0], i));
    (0..n).map(|i| (batch.positions[i], row(i))).collect()
}

/// The next global batches, assembled from those of all ranks, and the state of each rank after
/// them.
fn take(
    datasets: &Datasets,
    config: &StreamConfig,
    ranks: u64,
    prefetch: usize,
    state: Option<&StreamState>,
    n: usize,
) -> (Vec<(Bucket, Rows)>, StreamState) {
    let mut streams: Vec<Stream> = (0..ranks)
        .map(|rank| {
            let rank = Rank::new(WorldSize::new(ranks).unwrap(), rank).unwrap();
            let reading = ReadOptions { rank, prefetch, readers: 2, ..ReadOptions::default() };
            Stream::open(datasets, config.clone(), reading, state.cloned()).unwrap()
        })
        .collect();
    let batches = (0..n).map(|_| {
        let parts: Vec<Batch> = streams.iter_mut().map(|stream| stream.next_batch().unwrap()).collect();
        let mut whole = Rows::new();
        for part in &parts {
            assert_eq!((part.number, part.bucket), (parts[0].number, parts[0].bucket));
            rows(part).into_iter().for_each(|(position, row)| assert!(whole.insert(position, row).is_none()));
        }
        (parts[0].bucket, whole)
    });
    let batches = batches.collect();
    assert!(streams.iter().all(|stream| stream.state() == streams[0].state()));
    (batches, streams[0].state())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn global_batches_do_not_depend_on_world_size_or_prefetch(
        units in prop::collection::vec(prop::collection::vec(20u64..150, 1..4), 1..4),
        row_group_rows in 4u32..40,
        global_batch in 1u64..40,
        window in 1usize..6,
        seed: u64,
        ranks in 1u64..8,
        prefetch in 0usize..4,
        at in 0.0f64..1.0,
        draws in prop::collection::vec(0.1f64..3.0, 6),
        proportional: bool,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let datasets = datasets(folder.path(), row_group_rows, &units);
        let mix = |draws: &[f64]| -> BTreeMap<String, MixAmount> {
            let amount = |draw: &f64| if proportional { MixAmount::Proportion(*draw) } else { MixAmount::Repeat(1.0 + draw) };
            datasets.keys().cloned().zip(draws.iter().map(amount)).collect()
        };
        let phase = Phase { resolution: 64, global_batch, mix: mix(&draws) };
        let config = StreamConfig { seed, window, split: Split::Train, bucket: None, phase };
        let n = (300 / global_batch as usize).clamp(3, 40);

        let (whole, _) = take(&datasets, &config, 1, 4, None, n);
        for (bucket, rows) in &whole {
            prop_assert!(rows.keys().copied().eq(0..global_batch as u32));
            let ids: Vec<u64> = rows.values().map(|row| row.0).collect();
            let (latents, text): (Vec<_>, Vec<_>) = rows.values().map(|row| (&row.2[..], &row.3[..])).unzip();
            let first_text =
                DatasetSpec { more_text: [].into(), has_time_ids: false, ..datasets["a"].spec().clone() };
            check_tensors(&first_text, *bucket, &ids, &latents.concat(), &[text.concat()], None);
            let spec = datasets["a"].spec();
            prop_assert!(ids.iter().all(|id| crate::support::bucket(spec, *id, 64) == Some(*bucket)), "one size a batch");
        }
        prop_assert_eq!(&take(&datasets, &config, ranks, prefetch, None, n).0, &whole);

        // A run with another world size resumes.
        let k = (n as f64 * at) as usize;
        let (_, state) = take(&datasets, &config, ranks, prefetch, None, k);
        prop_assert_eq!(&take(&datasets, &config, 1, 1, Some(&state), n - k).0[..], &whole[k..]);

        // The same in another phase with another mix.
        let stream = Stream::open(&datasets, config.clone(), ReadOptions::default(), Some(state)).unwrap();
        let phase = Phase { resolution: 64, global_batch: global_batch + 3, mix: mix(&draws[3..]) };
        let next = StreamConfig { phase: phase.clone(), ..config.clone() };
        let state = stream.next_phase(phase);
        let state: StreamState = serde_json::from_str(&serde_json::to_string(&state).unwrap()).unwrap();
        let one = take(&datasets, &next, 1, 2, Some(&state), 4).0;
        prop_assert_eq!(&take(&datasets, &next, ranks, prefetch, Some(&state), 4).0, &one);
        let refused = Stream::open(&datasets, config, ReadOptions::default(), Some(state));
        prop_assert!(matches!(refused, Err(Error::State(_))), "it is of another phase");
    }
}

/// In each dataset and bucket, every row comes once before any comes again, and the amounts of the
/// mix are respected.
#[test]
fn mix_gives_each_dataset_its_share() {
    let folder = tempfile::tempdir().unwrap();
    let datasets = datasets(folder.path(), 16, &[vec![150, 90], vec![200]]);
    let mix = [("a".into(), MixAmount::Repeat(1.0)), ("b".into(), MixAmount::Repeat(2.0))];
    let phase = Phase { resolution: 64, global_batch: 8, mix: mix.into() };
    let config = StreamConfig { seed: seed(), window: 2, split: Split::Train, bucket: None, phase };
    let usable = |name: &str| -> u64 {
        let dataset = &datasets[name];
        dataset.buckets(64).into_iter().map(|bucket| dataset.num_rows(Split::Train, bucket)).sum()
    };
    let turns = (usable("a") + 2 * usable("b")).div_ceil(8);
    let (batches, _) = take(&datasets, &config, 1, 4, None, 2 * turns as usize);
    let seen = count_items(batches.iter().flat_map(|(_, rows)| rows.values().map(|row| (row.0, row.1))));
    assert!(seen.values().all(|times| *times == 1), "a row once an epoch");
    let times = count_items(seen.keys().map(|(id, _)| *id));
    assert_eq!(times.len() as u64, usable("a") + usable("b"), "no row is left out");
    let of_b: Vec<u64> = sample_ids(2, 200);
    for (id, times) in times {
        let expected = if of_b.contains(&id) { 4 } else { 2 };
        // A batch has one bucket only, so a bucket may be ahead or behind by one batch.
        assert!(times.abs_diff(expected) <= 2, "{id}: {times} times instead of {expected}");
    }
}

#[test]
fn resolution_without_rows_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let datasets = datasets(folder.path(), 16, &[vec![50]]);
    let mix = [("a".into(), MixAmount::Repeat(1.0))].into();
    let phase = Phase { resolution: 96, global_batch: 8, mix };
    let config = StreamConfig { seed: 1, window: 2, split: Split::Train, bucket: None, phase };
    let error = Stream::open(&datasets, config, ReadOptions::default(), None).unwrap_err().to_string();
    assert!(error.contains("prepared for 64") && error.contains("64-128x32"), "{error}");
}

#[test]
fn incompatible_datasets_are_not_mixed() {
    let folder = tempfile::tempdir().unwrap();
    let mut datasets = datasets(folder.path(), 16, &[vec![100]]);
    let mut other = conditioned(spec(16, 0.0));
    other.models.text_encoder = Some("another".into());
    for (name, other) in [("b", other), ("d", spec(16, 0.0))] {
        write_dataset(&folder.path().join(name), other, &[50]);
        datasets.insert(name.into(), open(&folder.path().join(name)));
    }
    let refused = |names: &[&str]| {
        let mix = names.iter().map(|name| ((*name).to_owned(), MixAmount::Proportion(1.0))).collect();
        let phase = Phase { resolution: 64, global_batch: 8, mix };
        let config = StreamConfig { seed: 1, window: 2, split: Split::Train, bucket: None, phase };
        Stream::open(&datasets, config, ReadOptions::default(), None).err().map(|error| error.to_string())
    };
    assert!(refused(&["a"]).is_none() && refused(&["b"]).is_none());
    let message = refused(&["a", "b"]).unwrap();
    assert!(message.contains("`a` and `b`") && message.contains("text encoders"), "{message}");
    assert!(refused(&["a", "c"]).unwrap().contains("no dataset `c`"));
    assert!(
        refused(&["a", "d"]).unwrap().contains("their texts differ (f16 [7, 5], text_2 f16 [7, 3], pooled_2")
    );
}
