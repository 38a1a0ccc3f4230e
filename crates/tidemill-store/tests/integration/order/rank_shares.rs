//! Which rank gets which rows of a batch, for any world size, and how much more is read than
//! needed.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use proptest::prelude::*;
use tidemill_store::Bucket;
use tidemill_store::stream::order::batch_plan::{BatchPlan, BatchPlanner, PlannedBatch};
use tidemill_store::stream::order::mix::MixAmount;
use tidemill_store::stream::order::rank_share::WorldSize;

use super::random_datasets::{World, mixes, phase, worlds};

/// 1 to 512 ranks, often 64 nodes of 8, and prime numbers.
fn ranks() -> impl Strategy<Value = WorldSize> {
    prop_oneof![1u64..=64, 1u64..=512, Just(512), prop::sample::select(vec![2, 3, 7, 61, 127, 509])]
        .prop_map(|ranks| WorldSize::new(ranks).unwrap())
}

/// Each row goes to one rank, and ranks get the same number of rows. Rows of a rank are in its own
/// blocks, or are read by range, but only where they must be.
fn check(ranks: WorldSize, batch: &PlannedBatch) -> Result<u64, TestCaseError> {
    let shares = ranks.share_batch(batch);
    prop_assert_eq!(shares.len() as u64, ranks.get());
    let owner = |i: &u32| {
        let row = batch.rows[*i as usize];
        ranks.owner(&batch.windows[row.window as usize].open, row.window_row.slot)
    };
    let mut own = vec![0; shares.len()];
    (0..batch.rows.len() as u32).for_each(|i| own[owner(&i) as usize] += 1);
    let sizes = shares.iter().map(|share| share.rows.len());
    prop_assert!(sizes.clone().max().unwrap() - sizes.min().unwrap() <= 1);
    let mut given: Vec<u32> = Vec::new();
    for (rank, share) in shares.iter().enumerate() {
        prop_assert!(share.rows.is_sorted());
        let foreign: Vec<u32> = share.rows.iter().copied().filter(|i| owner(i) != rank as u64).collect();
        prop_assert_eq!(&foreign, &share.by_range);
        prop_assert!(
            foreign.is_empty() || share.rows.len() - foreign.len() == own[rank],
            "first its own rows"
        );
        given.extend(&share.rows);
    }
    given.sort_unstable();
    prop_assert!(given.into_iter().eq(0..batch.rows.len() as u32), "each row to one rank");
    Ok(shares.iter().map(|share| share.by_range.len() as u64).sum())
}

/// Computes the rows that the ranks read per row given, and whether each batch consisted of whole
/// windows. Windows in use at the end count in proportion to their use.
fn amplification(
    dealer: &mut BatchPlanner,
    ranks: WorldSize,
    batches: u64,
) -> Result<(f64, bool), TestCaseError> {
    let (mut read, mut given, mut whole) = (0, 0, true);
    // Rows not yet given, by bucket, dataset and window.
    let mut waiting: HashMap<(Bucket, usize, u64, u64), u64> = HashMap::new();
    for number in 0..batches {
        let batch = dealer.batch(number);
        read += check(ranks, &batch)?;
        given += batch.rows.len() as u64;
        for (window, i) in batch.windows.iter().zip(0..) {
            let open = &window.open;
            let key = (batch.bucket, window.dataset, open.window.epoch, open.window.number);
            let waiting = waiting.entry(key).or_insert_with(|| {
                // Each block is read whole by its owner.
                let rows = (0..open.blocks.len() as u32).map(|slot| u64::from(open.block_rows(slot))).sum();
                read += rows;
                rows
            });
            *waiting -= batch.rows.iter().filter(|row| row.window == i).count() as u64;
            whole &= *waiting == 0;
        }
    }
    Ok(((read - waiting.values().sum::<u64>()) as f64 / given as f64, whole))
}

#[test]
fn evenly_divided_windows_are_read_once() {
    let dataset = BTreeMap::from([(Bucket::square(64), vec![1280])]);
    let world = World { shards: BTreeMap::from([("d0".to_string(), dataset)]), block_rows: 4 };
    let ranks = WorldSize::new(40).unwrap();
    for (global_batch, read_once) in [(1280, true), (1200, false)] {
        let mix = BTreeMap::from([("d0".to_string(), MixAmount::Repeat(1.0))]);
        let state = world.state(7, 360, phase(64, global_batch, mix));
        let mut dealer = BatchPlanner::new(Arc::new(BatchPlan::new(&world.indices(), &state).unwrap()));
        let (amplification, whole) = amplification(&mut dealer, ranks, 100).unwrap();
        assert_eq!((amplification == 1.0, whole), (read_once, read_once), "{amplification}");
    }
}

/// A number, often the smallest allowed one.
fn at_least(least: u64) -> impl Strategy<Value = u64> {
    prop_oneof![Just(least), Just(least + least / 8), least..3 * least]
}

/// Datasets of at least `blocks` blocks each.
fn large(blocks: u64) -> impl Strategy<Value = World> {
    let dataset = (at_least(blocks), prop::collection::vec(0u64..100, 1..30));
    (prop::collection::vec(dataset, 1..=3), 1u32..40, any::<bool>()).prop_map(
        |(datasets, block_rows, two_buckets)| {
            let dataset = |(blocks, mut shards): (u64, Vec<u64>)| {
                let rows: u64 = shards.iter().sum();
                shards.push((blocks * u64::from(block_rows)).saturating_sub(rows));
                let second = two_buckets.then(|| ("64-32x128".parse().unwrap(), shards.clone()));
                [(Bucket::square(64), shards)].into_iter().chain(second).collect::<BTreeMap<_, _>>()
            };
            let datasets = datasets.into_iter().map(dataset);
            World { shards: (0..).map(|i| format!("d{i}")).zip(datasets).collect(), block_rows }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_row_goes_to_exactly_one_rank(
        (world, mix) in worlds().prop_flat_map(|world| (Just(world.clone()), mixes(&world))),
        worlds_of_ranks in prop::collection::vec(ranks(), 4),
        seed: u64, window in 1usize..100, global_batch in 1u64..600, from in 0u64..1 << 40,
    ) {
        let state = world.state(seed, window, phase(64, global_batch, mix));
        let mut dealer = BatchPlanner::new(Arc::new(BatchPlan::new(&world.indices(), &state).unwrap()));
        for number in from..from + 3 {
            let batch = dealer.batch(number);
            for ranks in &worlds_of_ranks {
                check(*ranks, &batch)?;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// At least 8 blocks and 32 rows of a batch per rank.
    #[test]
    fn read_amplification_is_at_most_ten_percent(
        (ranks, world, window, global_batch) in ranks().prop_flat_map(|ranks| {
            let count = ranks.get();
            (Just(ranks), large(8 * count), at_least(8 * count), at_least(32 * count))
        }),
        seed: u64,
    ) {
        let mix = world.shards.keys().map(|name| (name.clone(), MixAmount::Repeat(1.0))).collect();
        let state = world.state(seed, window as usize, phase(64, global_batch, mix));
        let mut dealer = BatchPlanner::new(Arc::new(BatchPlan::new(&world.indices(), &state).unwrap()));
        let batches = 400_000 / global_batch;
        let (amplification, whole) = amplification(&mut dealer, ranks, batches)?;
        println!(
            "{} ranks, batch {global_batch}, window {window}, {} rows per block, {} datasets: {amplification:.4}",
            ranks.get(), world.block_rows, world.shards.len()
        );
        prop_assert!(amplification <= 1.1);
        // If whole windows are divided evenly, each rank reads exactly what it gets.
        prop_assert!(amplification > 1.0 || ranks.get() == 1 || whole && amplification == 1.0);
    }
}
