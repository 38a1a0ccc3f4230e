//! Tests of saving and loading: any number of ranks loads bit for bit what any other number wrote.
//! The ranks of a test run one after the other.

use std::path::Path;

use proptest::prelude::*;
use serde_json::json;
use tch::{Device, Kind, Tensor};

use super::location_check::{PROBE, START};
use super::state_copy::StateCopy;
use super::*;
use crate::config::{CheckpointConfig, CheckpointWriters, KeepBestConfig};
use crate::objective::philox::{Draw, Purpose};
use crate::optimizer::{Optimizer, ShardingPlan};
use crate::parallel::gradient_reduction::{GradientAccumulation, GradientReduction};
use crate::parallel::world::World;

/// The sizes of a network's parameters, and how its state is sharded.
#[derive(Clone, Debug)]
struct Case {
    sizes: Vec<i64>,
    bucket_elements: usize,
    ranks: usize,
    /// The number of ranks that share the state; it divides the number of ranks.
    partitions: usize,
    /// Whether averaging has started.
    ema: bool,
    /// Whether every third parameter is frozen.
    freezes: bool,
    /// Whether convolution weights are in channels-last order.
    channels_last: bool,
    /// Whether moments are bf16 instead of f32.
    bf16_moments: bool,
}

impl Case {
    /// All parameters are trained, without averages.
    fn new(sizes: Vec<i64>, bucket_elements: usize, ranks: usize) -> Self {
        Self {
            sizes,
            bucket_elements,
            ranks,
            partitions: ranks,
            ema: false,
            freezes: false,
            channels_last: false,
            bf16_moments: false,
        }
    }
}

/// Parameters with values that `purpose` determines. Every third one is a convolution weight with
/// `size` output channels.
fn values(sizes: &[i64], purpose: u64) -> Vec<(String, Tensor)> {
    let value = |(i, size): (u64, &i64)| {
        let shape = if i % 3 == 2 { vec![*size, 3, 2, 2] } else { vec![*size] };
        let mut numbers = vec![0f32; shape.iter().product::<i64>() as usize];
        Draw::new(purpose, 0, i, Purpose::InitialNoise).fill_normal(&mut numbers);
        (format!("p{i}"), Tensor::from_slice(&numbers).view(shape.as_slice()))
    };
    (0..).zip(sizes).map(value).collect()
}

/// The optimizer of a rank. `purpose` determines its weights; its moments are 2 and 3 times the
/// weights, its averages 4 times.
fn optimizer(case: &Case, rank: usize, purpose: u64) -> (World, Optimizer) {
    let world = World::without_group(rank, case.ranks);
    let params = tidemill_models::Params::from_named(Device::Cpu, values(&case.sizes, purpose));
    if case.channels_last {
        params.make_channels_last();
    }
    let plan = ShardingPlan {
        partition_count: case.partitions,
        bucket_elements: case.bucket_elements,
        reduction: GradientReduction { kind: Kind::Float, accumulation: GradientAccumulation::Off },
        moment_kind: if case.bf16_moments { Kind::BFloat16 } else { Kind::Float },
        frozen: (0..case.sizes.len())
            .filter(|i| case.freezes && i % 3 == 0)
            .map(|i| format!("p{i}"))
            .collect(),
        f32_params: Default::default(),
        units: Default::default(),
    };
    let mut optimizer = Optimizer::new(&params, Kind::Float, plan, &world).unwrap();
    optimizer.prepare_to_load(case.ema);
    let buffers = optimizer.buffers();
    let buckets = optimizer.layout().buckets();
    for (buffer, factor) in buffers[1..].iter().zip([2.0, 3.0, 4.0]) {
        for ((values, master), bucket) in buffer.1.iter().zip(buffers[0].1).zip(buckets) {
            // Frozen parameters have no moments.
            if factor == 4.0 || !bucket.treatment.is_frozen {
                values.shallow_clone().copy_(&(master * factor));
            }
        }
    }
    drop(buffers);
    (world, optimizer)
}

/// Saves a checkpoint as all ranks of a case.
fn save(checkpoints: &Checkpoints, case: &Case, step: u64) {
    let progress = progress_at(step);
    // The first rank is last, because it waits for the others.
    for rank in (0..case.ranks).rev() {
        let (world, optimizer) = optimizer(case, rank, step);
        let state = StateCopy::capture(&optimizer, &progress, &world, CheckpointWriters::All).unwrap();
        let others = (1..case.ranks).collect();
        let writer = Writer { rank, ranks: case.ranks, others, attempt: "a".into() };
        checkpoints.save(&state, &writer, &|| false).unwrap();
        checkpoints.delete_expired(&writer).unwrap();
    }
}

fn progress_at(step: u64) -> Progress {
    let recent_losses = (1..=step).map(|step| 1.0 / step as f64).collect();
    Progress { step, samples: 32 * step, recent_losses, ..Progress::new(json!({}), json!({})) }
}

fn open(folder: &Path) -> Checkpoints {
    Checkpoints::open(&CheckpointConfig::default(), folder).unwrap()
}

fn numbers(tensors: &[Tensor]) -> Vec<Vec<f32>> {
    tensors.iter().map(|tensor| Vec::try_from(tensor.to_kind(Kind::Float)).unwrap()).collect()
}

fn case() -> impl Strategy<Value = (Case, Case)> {
    // One rank has all, or the ranks of a node have, or all ranks have.
    let sharding = || (1usize..7, 0usize..4, 0usize..400, any::<bool>(), any::<bool>());
    let state = (prop::collection::vec(1i64..200, 1..8), any::<bool>(), any::<bool>());
    (state, sharding(), sharding()).prop_map(move |((sizes, ema, freezes), a, b)| {
        let case = |(ranks, sharing, bucket_elements, channels_last, bf16_moments)| Case {
            sizes: sizes.clone(),
            bucket_elements,
            ranks,
            partitions: {
                let divisors: Vec<usize> = (1..=ranks).filter(|count| ranks % count == 0).collect();
                divisors[sharing % divisors.len()]
            },
            ema,
            freezes,
            channels_last,
            bf16_moments,
        };
        (case(a), case(b))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn checkpoint_loads_on_any_number_of_ranks((written, read) in case()) {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = open(folder.path());
        save(&checkpoints, &written, 7);
        for rank in 0..read.ranks {
            let (_, expected) = optimizer(&read, rank, 7);
            let (_, mut loaded) = optimizer(&Case { ema: false, ..read.clone() }, rank, 0);
            let progress = checkpoints.load_step(7, &mut loaded, &json!({}), &|_| true).unwrap();
            prop_assert_eq!(progress, progress_at(7));
            prop_assert_eq!(loaded.buffers().len(), if written.ema { 4 } else { 3 });
            for ((name, loaded), (_, expected)) in loaded.buffers().into_iter().zip(expected.buffers()) {
                let rounds = written.bf16_moments && name.starts_with("exp_avg");
                let kind = if rounds { Kind::BFloat16 } else { Kind::Float };
                let expected: Vec<Tensor> = expected.iter().map(|tensor| tensor.to_kind(kind)).collect();
                prop_assert_eq!(numbers(loaded), numbers(&expected), "{} of rank {}", name, rank);
            }
        }
        for averaged in [false, true] {
            let factor = if averaged && written.ema { 4.0 } else { 1.0 };
            let (step, weights) = checkpoints.load_latest_weights(averaged).unwrap();
            prop_assert_eq!(step, 7);
            for ((name, found), (expected_name, expected)) in weights.iter().zip(values(&written.sizes, 7)) {
                prop_assert_eq!(name, &expected_name);
                prop_assert!(found.equal(&(expected * factor)));
            }
        }
    }
}

#[test]
fn damaged_or_missing_shard_falls_back_to_previous_checkpoint() {
    let written = Case::new(vec![100, 40, 300], 150, 3);
    let read = Case { ranks: 1, partitions: 1, ..written.clone() };
    for damage in [
        |path: &Path| std::fs::remove_file(path).unwrap(),
        |path: &Path| {
            let mut bytes = std::fs::read(path).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            std::fs::write(path, bytes).unwrap();
        },
    ] {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = open(folder.path());
        save(&checkpoints, &written, 7);
        save(&checkpoints, &written, 8);
        let shard = folder.path().join("checkpoints/step-00000008/a/rank-1-of-3.safetensors");
        damage(&shard);
        let (world, mut loaded) = optimizer(&read, 0, 0);
        let failed = checkpoints.load_step(8, &mut loaded, &json!({}), &|_| true).unwrap_err();
        assert!(failed.to_string().contains("rank-1-of-3.safetensors"), "{failed}");
        let mut logged = Vec::new();
        let log = &mut |message: &str| logged.push(message.to_string());
        let progress = checkpoints.load_latest(&mut loaded, &json!({}), &|_| true, &world, log).unwrap();
        assert_eq!(logged, [format!("{failed}; trying the checkpoint before it")]);
        assert_eq!(progress.unwrap().step, 7);
        let (_, expected) = optimizer(&read, 0, 7);
        assert_eq!(numbers(loaded.buffers()[1].1), numbers(expected.buffers()[1].1));
    }
}

#[test]
fn incomplete_checkpoint_is_not_committed_and_deleted_later() {
    let case = Case::new(vec![100], 0, 2);
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = open(folder.path());
    let (world, first) = optimizer(&case, 0, 7);
    let progress = Progress { step: 7, ..Progress::new(json!({}), json!({})) };
    let state = StateCopy::capture(&first, &progress, &world, CheckpointWriters::All).unwrap();
    let writer = Writer { rank: 0, ranks: 2, others: vec![1], attempt: "incomplete".into() };
    let failed = checkpoints.save(&state, &writer, &|| false).unwrap_err();
    assert!(failed.to_string().contains("rank-1-of-2"), "{failed}");
    assert_eq!(checkpoints.list_steps().unwrap(), Vec::<u64>::new());
    save(&checkpoints, &case, 9);
    assert_eq!(checkpoints.list_steps().unwrap(), [9]);
    assert!(!folder.path().join("checkpoints/step-00000007/incomplete/rank-0-of-2.safetensors").exists());
}

#[test]
fn keep_limits_the_number_of_checkpoints() {
    let case = Case::new(vec![100], 0, 2);
    let folder = tempfile::tempdir().unwrap();
    let config = CheckpointConfig { keep: 2, ..CheckpointConfig::default() };
    let checkpoints = Checkpoints::open(&config, folder.path()).unwrap();
    (1..=5).for_each(|step| save(&checkpoints, &case, step));
    assert_eq!(checkpoints.list_steps().unwrap(), [4, 5]);
    let left = checkpoints.location.list("").unwrap();
    assert!(left.iter().all(|key| key.starts_with("step-00000004/") || key.starts_with("step-00000005/")));
    // Each checkpoint has a commit, two shards, and the JSON file of the second rank.
    assert_eq!(left.len(), 8, "{left:?}");
}

#[test]
fn keep_every_keeps_the_first_checkpoint_of_each_interval() {
    let case = Case::new(vec![100], 0, 1);
    let folder = tempfile::tempdir().unwrap();
    let config = CheckpointConfig { keep: 2, keep_every: Some(10), ..CheckpointConfig::default() };
    let checkpoints = Checkpoints::open(&config, folder.path()).unwrap();
    // The first checkpoint of the interval from step 20 is late.
    for step in [4, 8, 10, 14, 18, 22, 24, 30, 34] {
        save(&checkpoints, &case, step);
    }
    assert_eq!(checkpoints.list_steps().unwrap(), [10, 22, 30, 34]);
    assert_eq!(checkpoints.load_latest_weights(false).unwrap().0, 34);
    assert!(checkpoints.load_weights(10, false).is_ok());
    let missing = checkpoints.load_weights(20, false).unwrap_err().to_string();
    assert!(missing.contains("no checkpoint of step 20 here, only of [10, 22, 30, 34]"), "{missing}");
}

/// A checkpoint without a record is as good as any. While a record cannot be read, all are kept.
#[test]
fn keep_best_keeps_the_best_of_those_with_a_record() {
    let case = Case::new(vec![100], 0, 1);
    let folder = tempfile::tempdir().unwrap();
    let best = KeepBestConfig { metric: "fid".into(), count: 1, uri: None };
    let config = CheckpointConfig { keep: 1, keep_best: Some(best), ..CheckpointConfig::default() };
    let checkpoints = Checkpoints::open(&config, folder.path()).unwrap();
    let evaluations = folder.path().join("evaluations");
    std::fs::create_dir(&evaluations).unwrap();
    let record = |step: u64| evaluations.join(format!("step-{step:08}.json"));
    let values = [(1, 30.0), (2, 12.5), (3, 20.0)];
    for (step, fid) in values {
        save(&checkpoints, &case, step);
        std::fs::write(record(step), json!({ "metrics": { "fid": fid } }).to_string()).unwrap();
    }
    save(&checkpoints, &case, 4);
    assert_eq!(checkpoints.list_steps().unwrap(), [2, 4]);
    // A link to itself cannot be read.
    std::os::unix::fs::symlink(record(4), record(4)).unwrap();
    let delete =
        || checkpoints.delete_expired(&Writer { rank: 0, ranks: 1, others: vec![], attempt: "x".into() });
    assert!(delete().is_err());
    assert_eq!(checkpoints.list_steps().unwrap(), [2, 4]);
    std::fs::remove_file(record(4)).unwrap();
    for step in [1, 2, 3] {
        std::fs::write(record(step), json!({ "metrics": { "kid": 1.0 } }).to_string()).unwrap();
    }
    let message = delete().unwrap_err().to_string();
    assert!(message.contains("no `fid`") && message.contains("only kid"), "{message}");
}

#[test]
fn unfinished_files_are_deleted_and_other_runs_checkpoints_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (checkpoints, case) = (open(folder.path()), Case::new(vec![10], 4, 1));
    let at = |path: &str| folder.path().join("checkpoints").join(path);
    let others = ["ablation/step-00000001/commit.json", "ablation/step-00000099/commit.json"];
    let unfinished = ["step-00000001/a/rank-0-of-1.safetensors#1", "step-00000002/a/x#12"];
    for path in others.into_iter().chain(unfinished) {
        std::fs::create_dir_all(at(path).parent().unwrap()).unwrap();
        std::fs::write(at(path), "{}").unwrap();
    }
    save(&checkpoints, &case, 7);
    assert_eq!(checkpoints.list_steps().unwrap(), [7]);
    assert!(others.iter().all(|path| at(path).exists()) && !unfinished.iter().any(|path| at(path).exists()));
}

#[test]
fn write_check_leaves_no_probe() {
    let folder = tempfile::tempdir().unwrap();
    let (checkpoints, location) = (open(folder.path()), folder.path().join("checkpoints"));
    let writer = Writer { rank: 0, ranks: 1, others: vec![], attempt: "a".into() };
    checkpoints.check_writable(&writer).unwrap();
    // A process that was killed leaves its probe.
    std::fs::write(location.join(PROBE), "").unwrap();
    checkpoints.check_writable(&writer).unwrap();
    assert_eq!(checkpoints.location.list("").unwrap(), [START]);
}

#[test]
fn checkpoint_of_another_process_is_not_replaced() {
    let case = Case::new(vec![100], 0, 1);
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = open(folder.path());
    save(&checkpoints, &case, 7);
    let commit = std::fs::read(folder.path().join("checkpoints/step-00000007/commit.json")).unwrap();
    let writer = |attempt: &str| Writer { rank: 0, ranks: 1, others: vec![], attempt: attempt.into() };
    assert!(checkpoints.check_own_commit(7, &writer("a")).is_ok());
    let other = checkpoints.check_own_commit(7, &writer("b")).unwrap_err().to_string();
    assert!(other.contains("step-00000007") && other.contains("only once at a time"), "{other}");
    let progress = Progress { step: 7, ..Progress::new(json!({}), json!({})) };
    let (world, optimizer) = optimizer(&case, 0, 8);
    let state = StateCopy::capture(&optimizer, &progress, &world, CheckpointWriters::All).unwrap();
    checkpoints.save(&state, &writer("b"), &|| false).unwrap();
    assert_eq!(std::fs::read(folder.path().join("checkpoints/step-00000007/commit.json")).unwrap(), commit);
}

#[test]
fn checkpoint_of_another_network_is_refused_by_parameter() {
    let written = Case::new(vec![100, 40], 0, 1);
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = open(folder.path());
    save(&checkpoints, &written, 7);
    for (sizes, expected) in [
        (vec![100, 41], "p1 is [40], expected [41]"),
        (vec![100], "p1 is not"),
        (vec![100, 40, 2], "lacks p2"),
    ] {
        let (_, mut other) = optimizer(&Case { sizes, ..written.clone() }, 0, 0);
        let failed = checkpoints.load_step(7, &mut other, &json!({}), &|_| true).unwrap_err();
        assert!(failed.to_string().contains(expected), "{failed}");
    }
}
