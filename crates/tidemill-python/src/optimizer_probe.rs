//! Runs the sharded optimizer alone, for tests that compare it with PyTorch's. Parameters and each
//! rank's gradients come from a file, and take the same path as in training.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;

use pyo3::prelude::*;
use serde::Deserialize;
use tch::{Device, Kind, Tensor};
use tidemill_models::Params;
use tidemill_torch::{AdamW, AdamWScalars};
use tidemill_train::{Error, GradientAccumulation, GradientReduction, Optimizer, ShardingPlan, World};

use crate::error::{TidemillError, raise};

/// The settings of a run of the optimizer.
#[derive(Debug, Deserialize)]
struct Probe {
    /// Tensors `start.<i>` and `gradient.<step>.<rank>.<i>`.
    tensors: PathBuf,
    /// The output file of the weights, with tensors `<i>`.
    weights: PathBuf,
    parameters: usize,
    /// The indices of the frozen parameters.
    frozen: Vec<usize>,
    /// The indices of parameters whose working weights are always f32. They have their own gradient
    /// buckets.
    f32: Vec<usize>,
    steps: u64,
    /// The number of ranks that share the state.
    partitions: usize,
    /// The names of the groups of this node's ranks and of its replicas, if nodes share the state.
    node_groups: Option<[String; 2]>,
    bucket_elements: usize,
    /// The number of equal parts in which the gradients arrive.
    micro_batches: usize,
    /// Whether each of them is reduced, and partitions are accumulated.
    accumulates_partitions: bool,
    /// Whether computation and communication use bf16 instead of f32.
    bf16: bool,
    /// Whether AdamW's moments are bf16 instead of f32.
    bf16_moments: bool,
    /// Whether an EMA of the weights is kept.
    ema: bool,
    lr: f64,
    betas: (f64, f64),
    eps: f64,
    weight_decay: f64,
    max_grad_norm: f64,
}

/// Runs the optimizer as one rank of a world. Returns the bytes of working weights, gradients and
/// optimizer state.
#[pyfunction]
pub fn probe_optimizer(
    py: Python<'_>,
    name: &str,
    rank: usize,
    world: usize,
    probe: &str,
) -> PyResult<[usize; 3]> {
    let probe: Probe = serde_json::from_str(probe).map_err(|e| TidemillError::new_err(e.to_string()))?;
    py.detach(|| run(name, rank, world, &probe)).map_err(raise)
}

fn run(name: &str, rank: usize, size: usize, probe: &Probe) -> Result<[usize; 3], Error> {
    let world = match &probe.node_groups {
        None => World::new(name, name, rank, size, size)?,
        Some([node, replicas]) => {
            World::new(name, name, rank, size, probe.partitions)?.with_node_groups(node, replicas)?
        }
    };
    let to_error = |e: tch::TchError| Error::Torch(tidemill_torch::Error::Torch(e.to_string()));
    let tensors: HashMap<String, Tensor> =
        Tensor::read_safetensors(&probe.tensors).map_err(to_error)?.into_iter().collect();
    let load_parameter = |i: usize| (format!("p{i}"), tensors[&format!("start.{i}")].copy());
    let params = Params::from_named(Device::Cpu, (0..probe.parameters).map(load_parameter).collect());
    let kind = if probe.bf16 { Kind::BFloat16 } else { Kind::Float };
    let names = |indices: &[usize]| indices.iter().map(|i| format!("p{i}")).collect::<BTreeSet<_>>();
    let accumulation = match (probe.micro_batches, probe.accumulates_partitions) {
        (1, _) => GradientAccumulation::Off,
        (_, false) => GradientAccumulation::Whole,
        (_, true) => GradientAccumulation::Partitions,
    };
    let reduction = GradientReduction { kind, accumulation };
    let plan = ShardingPlan {
        partition_count: probe.partitions,
        bucket_elements: probe.bucket_elements,
        reduction,
        moment_kind: if probe.bf16_moments { Kind::BFloat16 } else { Kind::Float },
        frozen: names(&probe.frozen),
        f32_params: names(&probe.f32),
        units: Default::default(),
    };
    let mut optimizer = Optimizer::new(&params, kind, plan, &world)?;
    for step in 0..probe.steps {
        optimizer.gradients().begin_step();
        for micro_batch in 0..probe.micro_batches {
            optimizer.gradients().begin_micro_batch(micro_batch + 1 == probe.micro_batches)?;
            let mut loss = Tensor::zeros([], (Kind::Float, Device::Cpu));
            for (i, (_, param)) in params.named_parameters().into_iter().enumerate() {
                let gradient = &tensors[&format!("gradient.{step}.{rank}.{i}")] / probe.micro_batches as f64;
                loss += (param.to_kind(Kind::Float) * gradient).sum(Kind::Float);
            }
            loss.backward();
        }
        optimizer.gradients().finish_reduction()?;
        let norm = world.all_reduce_sum(optimizer.squared_norm(&world)?)?.sqrt();
        let divisor = 1.0 / (probe.max_grad_norm / (norm + 1e-6)).clamp_max(1.0);
        let Probe { lr, betas, eps, weight_decay, .. } = *probe;
        let [count, learning_rate, ema_rate] = &[(step + 1) as f32, lr as f32, 0.1].map(Tensor::from);
        let scalars =
            AdamWScalars { step: count, learning_rate, grad_divisor: &divisor, ema_rate, skip: None };
        optimizer.step(AdamW { betas, eps, weight_decay }, scalars, probe.ema)?;
    }
    // Waits for the weights of other ranks.
    params.run_pre_forward_hook("");
    let bytes = optimizer.memory_bytes();
    let weights = params.named_parameters();
    let weights: Vec<_> =
        weights.iter().enumerate().map(|(i, (_, tensor))| (i.to_string(), tensor.detach())).collect();
    Tensor::write_safetensors(&weights, &probe.weights).map_err(to_error)?;
    Ok(bytes)
}
