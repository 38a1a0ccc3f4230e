//! What cannot be planned is refused by its key; what can be is planned.

use crate::config::PlanConfig;
use crate::memory::{BackwardMoment, MemoryLayout, Sharding};
use crate::modes::Mode;
use crate::plan::make_plan;
use crate::storage::{RowFormat, TextFormat, TextShape};
use crate::workload::{ImageCost, Phase, Workload};

const CLUSTER: &str = r#"
trainers = { node = "box", nodes = 2 }
encoders = { node = "small" }
nodes.box = { gpu = "A", gpus = 4, gpu_memory = 16, on_demand = 8 }
nodes.small = { gpu = "B", gpus = 1, cpus = 4, on_demand = 0.5, spot = 0.2 }
rates.A = { train = { 64 = 100 }, encode = { 64 = 300 } }
rates.B = { encode = { 64 = 250 }, prepare = 50 }
"#;

/// The cluster with one text in place of another, and more keys.
fn config(old: &str, new: &str, more: &str) -> PlanConfig {
    assert!(CLUSTER.contains(old));
    toml::from_str(&(CLUSTER.replacen(old, new, 1) + more)).unwrap()
}

fn workload() -> Workload {
    let layout = MemoryLayout {
        parameters: 100_000_000,
        resident_parameters: 100_000_000,
        buffer_bytes: 0,
        ranks: 1,
        partitions: 1,
        weight_bytes: 2,
        reduce_bytes: 4,
        moment_bytes: 4,
        has_ema: false,
        is_accumulated: false,
        bucket_bytes: 1 << 20,
    };
    Workload {
        phases: vec![Phase { resolution: 64, samples: 32_000, global_batch: 32, micro_batch: 16 }],
        layout,
        sharding: Sharding::ShardGradOp,
        shard_units: None,
        has_evaluations: false,
        row_format: RowFormat {
            latent_channels: 4,
            downscale_factor: 8,
            texts: vec![TextShape { tokens: 77, width: 64 }],
            pooled_width: 0,
        },
        embeddings: TextFormat::F16,
        image_costs: [(64, ImageCost { flops: 1e9, activations: activations(1 << 20) })].into(),
    }
}

fn activations(bytes: u64) -> Option<Vec<BackwardMoment>> {
    let moment = |bytes, gradient_share| BackwardMoment { bytes, gradient_share };
    Some(vec![moment(bytes, 0.0), moment(bytes / 8, 1.0)])
}

#[test]
fn what_cannot_be_planned_is_refused_by_its_key() {
    for (old, new, more, expected) in [
        ("", "", "price = \"reserved\"", "plan.nodes.\"box\".reserved: the price is not known"),
        ("", "", "price = \"spot\"", "plan.failures.spot_hours: spot prices need"),
        ("64 = 100", "64 = 0", "", "plan.rates.A.train.64: is 0; it must be above 0"),
        ("node = \"box\"", "node = \"none\"", "", "there is no node type \"none\"; known are box,"),
        ("gpu_memory = 16", "gpu_memory = 1", "", "not even 1 image of 64 pixels fits on one A"),
        ("", "", "rows = { 128 = 5 }", "plan.rows.128: no phase trains at 128 pixels"),
        ("64 = 100", "64px = 100", "", "64px is no resolution"),
        ("gpu = \"A\"", "gpu = \"Z\"", "", "there are no rates of Z"),
        ("gpu = \"A\", ", "", "", "plan.nodes.\"box\".gpu: name the GPU"),
        ("", "", "failures.gpu_hours = -1", "plan.failures.gpu_hours: is -1; it must be above 0"),
        ("", "", "failures = { gpu_hours = 1e-6 }", "machines fail faster than the run restarts"),
    ] {
        let error = make_plan(&workload(), &config(old, new, more)).unwrap_err().to_string();
        assert!(error.contains(expected), "{new} {more}: {error}");
    }
    let nothing = Workload { phases: Vec::new(), ..workload() };
    let error = make_plan(&nothing, &config("", "", "")).unwrap_err().to_string();
    assert!(error.contains("nothing is trained"), "{error}");
}

/// The others are planned, and the reason is told.
#[test]
fn a_mode_without_a_rate_is_left_out() {
    let plan = make_plan(&workload(), &config(", encode = { 64 = 300 }", "", "")).unwrap();
    assert!(plan.missing[&Mode::Colocated].contains("plan.rates.\"A\".encode.64"), "{:?}", plan.missing);
    assert_eq!(plan.modes.keys().copied().collect::<Vec<_>>(), [Mode::Offline, Mode::Online]);
}

#[test]
fn what_does_not_fit_together_is_remarked() {
    let remarks = |workload: &Workload| make_plan(workload, &config("", "", "")).unwrap().remarks;
    assert_eq!(remarks(&workload()), Vec::<String>::new());
    let mut few = workload();
    few.phases[0].global_batch = 5;
    assert!(remarks(&few)[0].contains("leaves 3 of 8 GPUs without images"));
    let mut large = workload();
    large.image_costs.insert(64, ImageCost { flops: 1e9, activations: activations(4 << 30) });
    assert!(remarks(&large)[0].contains("a micro-batch of 4 images of 64 pixels does not fit"));
}
