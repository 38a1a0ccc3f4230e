//! What any number of ranks wrote, any other number loads, bit for bit; ranks are stood in for one after the other.

use proptest::prelude::*;
use serde_json::json;
use tch::{Device, Kind, Tensor};

use super::*;
use crate::checkpoint::state_copy::Snapshot;
use crate::config::Writers;
use crate::objective::philox::{Draw, Purpose};
use crate::optimizer::{Distribution, Optimizer};
use crate::parallel::gradients::Reduction;
use crate::parallel::world::World;

/// Sizes of the parameters of a network, and how it is distributed.
#[derive(Clone, Debug)]
struct Case {
    sizes: Vec<i64>,
    bucket_elements: usize,
    ranks: usize,
    sharded: bool,
    /// Whether averaging has begun.
    ema: bool,
    /// Every third parameter, or none.
    freezes: bool,
    /// Whether convolutions' weights lie so.
    channels_last: bool,
    /// Whether moments are; f32 otherwise.
    bf16_moments: bool,
}

impl Case {
    /// All trained, without averages.
    fn new(sizes: Vec<i64>, bucket_elements: usize, ranks: usize) -> Self {
        Self {
            sizes,
            bucket_elements,
            ranks,
            sharded: true,
            ema: false,
            freezes: false,
            channels_last: false,
            bf16_moments: false,
        }
    }
}

/// Every third one is a convolution's weight of so many outputs.
fn values(sizes: &[i64], purpose: u64) -> Vec<(String, Tensor)> {
    let value = |(i, size): (u64, &i64)| {
        let shape = if i % 3 == 2 { vec![*size, 3, 2, 2] } else { vec![*size] };
        let mut numbers = vec![0f32; shape.iter().product::<i64>() as usize];
        Draw::new(purpose, 0, i, Purpose::Picture).normal(&mut numbers);
        (format!("p{i}"), Tensor::from_slice(&numbers).view(shape.as_slice()))
    };
    (0..).zip(sizes).map(value).collect()
}

/// The optimizer of a rank, whose parameters are drawn for `purpose`; its moments are 2 and 3 times the weights, averages 4 times.
fn optimizer(case: &Case, rank: usize, purpose: u64) -> (World, Optimizer) {
    let world = World::apart(rank, case.ranks);
    let params = tidemill_models::Params::from_named(Device::Cpu, values(&case.sizes, purpose));
    if case.channels_last {
        params.make_channels_last();
    }
    let distribution = Distribution {
        sharded: case.sharded && case.ranks > 1,
        bucket_elements: case.bucket_elements,
        reduction: Reduction { kind: Kind::Float, accumulates: false },
        moments: if case.bf16_moments { Kind::BFloat16 } else { Kind::Float },
        frozen: (0..case.sizes.len())
            .filter(|i| case.freezes && i % 3 == 0)
            .map(|i| format!("p{i}"))
            .collect(),
        f32: Default::default(),
    };
    let mut optimizer = Optimizer::new(&params, Kind::Float, distribution, &world).unwrap();
    optimizer.prepare_to_load(case.ema);
    let buffers = optimizer.buffers();
    let buckets = optimizer.layout().0.buckets();
    for (buffer, factor) in buffers[1..].iter().zip([2.0, 3.0, 4.0]) {
        for ((values, master), bucket) in buffer.1.iter().zip(buffers[0].1).zip(buckets) {
            // What is frozen has no moments.
            if factor == 4.0 || !bucket.treatment.frozen {
                values.shallow_clone().copy_(&(master * factor));
            }
        }
    }
    drop(buffers);
    (world, optimizer)
}

/// Saves as all ranks of a case.
fn save(checkpoints: &Checkpoints, case: &Case, step: u64) {
    let progress = progress_at(step);
    // The first rank last, for it waits for the others.
    for rank in (0..case.ranks).rev() {
        let (world, optimizer) = optimizer(case, rank, step);
        let snapshot = Snapshot::take(&optimizer, &progress, &world, Writers::All).unwrap();
        let others = (1..case.ranks).collect();
        let writer = Writer { rank, ranks: case.ranks, others, attempt: "a".into() };
        checkpoints.save(&snapshot, &writer, &|| false).unwrap();
        checkpoints.retain(&writer).unwrap();
    }
}

fn progress_at(step: u64) -> Progress {
    let recent_losses = (1..=step).map(|step| 1.0 / step as f64).collect();
    Progress { step, samples: 32 * step, recent_losses, ..Progress::start(json!({}), json!({})) }
}

fn open(folder: &Path) -> Checkpoints {
    Checkpoints::open(&CheckpointConfig::default(), folder).unwrap()
}

fn numbers(tensors: &[Tensor]) -> Vec<Vec<f32>> {
    tensors.iter().map(|tensor| Vec::try_from(tensor.to_kind(Kind::Float)).unwrap()).collect()
}

fn case() -> impl Strategy<Value = (Case, Case)> {
    let distribution = || (1usize..6, any::<bool>(), 0usize..400, any::<bool>(), any::<bool>());
    let state = (prop::collection::vec(1i64..200, 1..8), any::<bool>(), any::<bool>());
    (state, distribution(), distribution()).prop_map(move |((sizes, ema, freezes), a, b)| {
        let case = |(ranks, sharded, bucket_elements, channels_last, bf16_moments)| Case {
            sizes: sizes.clone(),
            bucket_elements,
            ranks,
            sharded,
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
    fn any_number_of_ranks_loads_what_any_other_wrote((written, read) in case()) {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = open(folder.path());
        save(&checkpoints, &written, 7);
        for rank in 0..read.ranks {
            let (_, expected) = optimizer(&read, rank, 7);
            let (_, mut loaded) = optimizer(&Case { ema: false, ..read.clone() }, rank, 0);
            let progress = checkpoints.try_restore(7, &mut loaded, &json!({}), &|_| true).unwrap();
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
            let (step, weights) = checkpoints.weights(averaged).unwrap();
            prop_assert_eq!(step, 7);
            for ((name, found), (expected_name, expected)) in weights.iter().zip(values(&written.sizes, 7)) {
                prop_assert_eq!(name, &expected_name);
                prop_assert!(found.equal(&(expected * factor)));
            }
        }
    }
}

#[test]
fn a_shard_that_is_damaged_or_gone_is_named_and_the_checkpoint_before_it_used() {
    let written = Case::new(vec![100, 40, 300], 150, 3);
    let read = Case { ranks: 1, ..written.clone() };
    for spoil in [
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
        spoil(&shard);
        let (world, mut loaded) = optimizer(&read, 0, 0);
        let failed = checkpoints.try_restore(8, &mut loaded, &json!({}), &|_| true).unwrap_err();
        assert!(failed.to_string().contains("rank-1-of-3.safetensors"), "{failed}");
        let mut told = Vec::new();
        let tell = &mut |message: &str| told.push(message.to_string());
        let progress = checkpoints.restore(&mut loaded, &json!({}), &|_| true, &world, tell).unwrap();
        assert_eq!(told, [format!("{failed}; trying the checkpoint before it")]);
        assert_eq!(progress.unwrap().step, 7);
        let (_, expected) = optimizer(&read, 0, 7);
        assert_eq!(numbers(loaded.buffers()[1].1), numbers(expected.buffers()[1].1));
    }
}

#[test]
fn without_the_others_shards_nothing_is_committed_and_what_is_left_is_removed() {
    let case = Case::new(vec![100], 0, 2);
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = open(folder.path());
    let (world, lonely) = optimizer(&case, 0, 7);
    let progress = Progress { step: 7, ..Progress::start(json!({}), json!({})) };
    let snapshot = Snapshot::take(&lonely, &progress, &world, Writers::All).unwrap();
    let writer = Writer { rank: 0, ranks: 2, others: vec![1], attempt: "lonely".into() };
    let failed = checkpoints.save(&snapshot, &writer, &|| false).unwrap_err();
    assert!(failed.to_string().contains("rank-1-of-2"), "{failed}");
    assert_eq!(checkpoints.steps().unwrap(), Vec::<u64>::new());
    save(&checkpoints, &case, 9);
    assert_eq!(checkpoints.steps().unwrap(), [9]);
    assert!(!folder.path().join("checkpoints/step-00000007/lonely/rank-0-of-2.safetensors").exists());
}

#[test]
fn only_so_many_are_kept() {
    let case = Case::new(vec![100], 0, 2);
    let folder = tempfile::tempdir().unwrap();
    let config = CheckpointConfig { keep: 2, ..CheckpointConfig::default() };
    let checkpoints = Checkpoints::open(&config, folder.path()).unwrap();
    (1..=5).for_each(|step| save(&checkpoints, &case, step));
    assert_eq!(checkpoints.steps().unwrap(), [4, 5]);
    let left = checkpoints.location.list("").unwrap();
    assert!(left.iter().all(|key| key.starts_with("step-00000004/") || key.starts_with("step-00000005/")));
    // Of each: the commit, two shards, and the second one's word.
    assert_eq!(left.len(), 8, "{left:?}");
}

#[test]
fn the_first_of_every_so_many_steps_stays() {
    let case = Case::new(vec![100], 0, 1);
    let folder = tempfile::tempdir().unwrap();
    let config = CheckpointConfig { keep: 2, keep_every: Some(10), ..CheckpointConfig::default() };
    let checkpoints = Checkpoints::open(&config, folder.path()).unwrap();
    // That of step 20 was late.
    for step in [4, 8, 10, 14, 18, 22, 24, 30, 34] {
        save(&checkpoints, &case, step);
    }
    assert_eq!(checkpoints.steps().unwrap(), [10, 22, 30, 34]);
    assert_eq!(checkpoints.weights(false).unwrap().0, 34);
    assert!(checkpoints.weights_of(10, false).is_ok());
    let missing = checkpoints.weights_of(20, false).unwrap_err().to_string();
    assert!(missing.contains("no checkpoint of step 20 here, only of [10, 22, 30, 34]"), "{missing}");
}

#[test]
fn another_runs_checkpoints_stay_and_what_was_being_written_goes() {
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
    assert_eq!(checkpoints.steps().unwrap(), [7]);
    assert!(others.iter().all(|path| at(path).exists()) && !unfinished.iter().any(|path| at(path).exists()));
}

#[test]
fn a_start_proves_that_commits_can_be_put_and_leaves_nothing_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let (checkpoints, place) = (open(folder.path()), folder.path().join("checkpoints"));
    let writer = Writer { rank: 0, ranks: 1, others: vec![], attempt: "a".into() };
    checkpoints.announce(&writer).unwrap();
    // As a process that was killed leaves it.
    std::fs::write(place.join(PROBE), "").unwrap();
    checkpoints.announce(&writer).unwrap();
    assert_eq!(checkpoints.location.list("").unwrap(), [START]);
}

#[test]
fn a_checkpoint_that_another_process_has_written_is_not_replaced() {
    let case = Case::new(vec![100], 0, 1);
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = open(folder.path());
    save(&checkpoints, &case, 7);
    let commit = std::fs::read(folder.path().join("checkpoints/step-00000007/commit.json")).unwrap();
    let writer = |attempt: &str| Writer { rank: 0, ranks: 1, others: vec![], attempt: attempt.into() };
    assert!(checkpoints.check_own(7, &writer("a")).is_ok());
    let other = checkpoints.check_own(7, &writer("b")).unwrap_err().to_string();
    assert!(other.contains("step-00000007") && other.contains("only once at a time"), "{other}");
    let progress = Progress { step: 7, ..Progress::start(json!({}), json!({})) };
    let (world, optimizer) = optimizer(&case, 0, 8);
    let snapshot = Snapshot::take(&optimizer, &progress, &world, Writers::All).unwrap();
    checkpoints.save(&snapshot, &writer("b"), &|| false).unwrap();
    assert_eq!(std::fs::read(folder.path().join("checkpoints/step-00000007/commit.json")).unwrap(), commit);
}

#[test]
fn parameters_of_another_network_are_refused_by_name() {
    let written = Case::new(vec![100, 40], 0, 1);
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = open(folder.path());
    save(&checkpoints, &written, 7);
    for (sizes, says) in [
        (vec![100, 41], "p1 is [40], expected [41]"),
        (vec![100], "p1 is not"),
        (vec![100, 40, 2], "lacks p2"),
    ] {
        let (_, mut other) = optimizer(&Case { sizes, ..written.clone() }, 0, 0);
        let failed = checkpoints.try_restore(7, &mut other, &json!({}), &|_| true).unwrap_err();
        assert!(failed.to_string().contains(says), "{failed}");
    }
}
