//! Batch plans: every row once per epoch, every dataset in proportion, any batch from the state
//! alone, and phases in sequence.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use tidemill_store::Bucket;
use tidemill_store::stream::StreamState;
use tidemill_store::stream::order::batch_plan::{BatchPlan, BatchPlanner, PlannedBatch};
use tidemill_store::stream::order::mix::{MixAmount, compute_weights};
use tidemill_store::stream::state::Phase;

use super::random_datasets::{Row, World, mixes, phase, worlds};

/// Limit of rows in a test case.
const ROWS: u64 = 30_000;

fn deal(world: &World, state: &StreamState, batches: u64) -> (Arc<BatchPlan>, Vec<PlannedBatch>) {
    let plan = Arc::new(BatchPlan::new(&world.indices(), state).unwrap());
    let mut dealer = BatchPlanner::new(plan.clone());
    let batches = (state.batches..state.batches + batches).map(|number| dealer.batch(number)).collect();
    (plan, batches)
}

fn cases() -> impl Strategy<Value = (World, StreamState)> {
    let settings = (any::<u64>(), 1usize..12, 1u64..300);
    worlds().prop_flat_map(|world| (mixes(&world), Just(world))).prop_flat_map(move |(mix, world)| {
        settings.clone().prop_map(move |(seed, window, global_batch)| {
            (world.clone(), world.state(seed, window, phase(64, global_batch, mix.clone())))
        })
    })
}

/// The state after `batches` batches, serialised and deserialised.
fn resumed(state: &StreamState, batches: u64) -> StreamState {
    let text = serde_json::to_string(&StreamState { batches, ..state.clone() }).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Each epoch contains each row of the shards once. The last epoch may be incomplete.
fn check_epochs(shards: &[u64], rows: &[Row]) -> Result<(), TestCaseError> {
    let all: Vec<(usize, u64)> =
        shards.iter().enumerate().flat_map(|(shard, n)| (0..*n).map(move |row| (shard, row))).collect();
    for (epoch, rows) in rows.chunks(all.len()).enumerate() {
        prop_assert!(rows.iter().all(|row| row.epoch == epoch as u64));
        let mut shard_rows: Vec<(usize, u64)> = rows.iter().map(|row| (row.shard, row.row)).collect();
        shard_rows.sort_unstable();
        shard_rows.dedup();
        prop_assert_eq!(shard_rows.len(), rows.len(), "no row twice in an epoch");
        prop_assert!(rows.len() < all.len() || shard_rows == all);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_row_comes_once_per_epoch_in_proportion_to_the_mix((world, state) in cases()) {
        let Phase { global_batch, mix, .. } = &state.phase;
        let batches = ROWS / global_batch;
        let (plan, dealt) = deal(&world, &state, batches);
        let sorted = world.sort(&plan, &dealt);
        for ((name, bucket), rows) in &sorted {
            check_epochs(&world.shards[name][bucket], rows)?;
        }
        // Off by at most half a turn per level of the trees, both for the batches of a bucket and
        // for the rows in it.
        let all_rows: Vec<u64> = world.shards.keys().map(|name| world.rows(name, 64)).collect();
        let weights = compute_weights(mix, &all_rows).unwrap();
        let levels = |parts: usize| f64::from(parts.next_power_of_two().ilog2());
        let buckets = world.shards["d0"].len() - 1;
        let off = buckets as f64 * (*global_batch as f64 * levels(buckets) + levels(mix.len())) / 2.0;
        for (name, weight) in mix.keys().zip(&weights) {
            let rows: usize = sorted.iter().filter(|((n, _), _)| n == name).map(|(_, rows)| rows.len()).sum();
            let share = *weight as f64 / weights.iter().sum::<u64>() as f64;
            let expected = (batches * global_batch) as f64 * share;
            prop_assert!((rows as f64 - expected).abs() <= off + 1e-6, "{rows} rows of {name} for {expected}");
        }
        for standing in plan.sequence_positions(batches) {
            let key = (standing.dataset.to_owned(), standing.bucket);
            prop_assert_eq!(sorted.get(&key).map_or(0, Vec::len) as u64, standing.position);
        }
    }

    #[test]
    fn any_batch_follows_from_the_state((world, state) in cases(), at in 0.0f64..1.0) {
        let batches = ROWS / 10 / state.phase.global_batch + 2;
        let (_, whole) = deal(&world, &state, batches);
        let from = (at * batches as f64) as u64;
        let (_, rest) = deal(&world, &resumed(&state, from), batches - from);
        prop_assert_eq!(&whole[from as usize..], &rest[..]);
        prop_assert!(whole.iter().all(|batch| batch.rows.len() as u64 == state.phase.global_batch));
    }

    /// Through phases of any mix, resolution and batch size, interrupted anywhere, the rows of each
    /// dataset come in its own order without a gap.
    #[test]
    fn datasets_continue_from_phase_to_phase(
        (world, first) in cases(),
        phases in prop::collection::vec((any::<bool>(), 1u64..100, any::<u8>(), 0u64..12), 1..5),
    ) {
        let phases = phases.into_iter().map(|(high, global_batch, mask, batches)| {
            let takes_part = |i: usize| i == usize::from(mask) % world.shards.len() || mask >> i & 1 == 1;
            let names = world.shards.keys().enumerate().filter(|(i, _)| takes_part(*i));
            let mix = names.map(|(i, name)| (name.clone(), MixAmount::Repeat(1.0 + i as f64))).collect();
            (phase(if high { 128 } else { 64 }, global_batch, mix), batches)
        });
        let mut state = first.clone();
        let mut given: BTreeMap<(String, Bucket), Vec<Row>> = BTreeMap::new();
        for (phase, batches) in [(first.phase.clone(), 5)].into_iter().chain(phases) {
            let plan = BatchPlan::new(&world.indices(), &state).unwrap();
            state = plan.next_phase(&state, phase);
            for part in [batches / 2, batches - batches / 2] {
                let (plan, dealt) = deal(&world, &state, part);
                for (key, rows) in world.sort(&plan, &dealt) {
                    given.entry(key).or_default().extend(rows);
                }
                state = resumed(&state, state.batches + part);
            }
        }
        for ((name, bucket), rows) in given {
            check_epochs(&world.shards[&name][&bucket], &rows)?;
            let alone = World { shards: [(name.clone(), world.shards[&name].clone())].into(), ..world.clone() };
            let mix = [(name.clone(), MixAmount::Repeat(1.0))].into();
            let state = alone.state(first.seed, first.window, phase(bucket.resolution, 1, mix));
            let plan = BatchPlan::new(&alone.indices(), &state).unwrap();
            let order = plan.sequence_positions(0).find(|standing| standing.bucket == bucket).unwrap().order.clone();
            let mut position = 0;
            while position < rows.len() as u64 {
                let open = order.open(order.window_at(position));
                for row in &rows[position as usize..rows.len().min(open.window.rows.end as usize)] {
                    let window_row = open.row(position);
                    let block = open.blocks[window_row.slot as usize];
                    let (shard, in_shard) = order.index().locate(block, window_row.row.into());
                    prop_assert_eq!((row.shard, row.row), (shard, in_shard));
                    position += 1;
                }
            }
        }
    }
}

#[test]
fn orders_of_datasets_and_buckets_differ() {
    let shards = vec![100u64; 50];
    let buckets: BTreeMap<Bucket, Vec<u64>> =
        ["64", "64-32x128"].map(|name| (name.parse().unwrap(), shards.clone())).into();
    let world =
        World { shards: ["a", "b"].map(|name| (name.to_owned(), buckets.clone())).into(), block_rows: 10 };
    let mix = ["a", "b"].map(|name| (name.to_owned(), MixAmount::Repeat(1.0))).into();
    let plan = BatchPlan::new(&world.indices(), &world.state(1, 8, phase(64, 4, mix))).unwrap();
    let mut first: Vec<Vec<u64>> =
        plan.sequence_positions(0).map(|s| s.order.open(s.order.window_at(0)).blocks).collect();
    first.sort();
    first.dedup();
    assert_eq!(first.len(), 4);
}

#[test]
fn invalid_phase_is_refused() {
    let world =
        World { shards: [("a".into(), [(Bucket::square(64), vec![5])].into())].into(), block_rows: 4 };
    let refuse = |phase| BatchPlan::new(&world.indices(), &world.state(1, 4, phase)).unwrap_err().to_string();
    let mix = |name: &str| BTreeMap::from([(name.to_owned(), MixAmount::Repeat(1.0))]);
    assert!(refuse(phase(64, 0, mix("a"))).contains("global_batch"));
    assert!(refuse(phase(128, 1, mix("a"))).contains("dataset `a` has no rows"));
    assert!(refuse(phase(64, 1, mix("b"))).contains("dataset `b` has no rows"));
    assert!(refuse(phase(64, 1, BTreeMap::new())).contains("no dataset"));
}
