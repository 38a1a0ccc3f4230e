//! CUDA graphs (`train.cuda_graph`): a step on a GPU is recorded once, and then started as a whole.

use std::collections::BTreeMap;
use std::time::Instant;

use tch::{Cuda, Device, Tensor, no_grad};
use tidemill_torch::{CudaGraph, Download, GraphMemoryPool, guard};

use super::step_inputs::{StepInputs, StepOutputs};
use crate::Error;
use crate::config::{CudaGraphMode, Sharding, TrainConfig};
use crate::parallel::world::World;

/// Steps of a kind that are computed without a graph before one is recorded. After these,
/// everything that a step creates exists: moments, averages, compiled kernels, workspaces of
/// libraries.
const WARMUP_STEPS: u32 = 3;

/// The host is the limit of a step if launching takes it more than this share of the step's time. Where the
/// GPU is the limit, the host is through at half of it: it may be a thousand kernels ahead.
const HOST_BOUND_SHARE: f64 = 0.9;

/// The largest relative difference between the outputs of a step and its recording. Kernels that
/// sum in no fixed order round differently.
const TOLERANCE: f32 = 0.02;

/// The number of outputs that are compared: the norm of the gradients, and the sum of the losses.
const COMPARED: usize = 2;

/// Steps of one kind have a graph in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StepKind {
    /// The shapes of the inputs on each rank.
    shapes: Vec<String>,
    /// Whether weights are averaged.
    is_averaging: bool,
}

impl StepKind {
    /// The kind of a step. NCCL wants collectives recorded or replayed by all ranks or by none. All ranks see
    /// the same kinds in the same order, so they record and replay the same steps. They call this together.
    ///
    /// # Errors
    /// [`Error::Peer`] if another rank cannot be reached.
    pub fn agree(inputs: &StepInputs, is_averaging: bool, world: &World) -> Result<Self, Error> {
        let shapes = world.all_gather_text(&format!("{:?}", inputs.shapes()))?;
        Ok(Self { shapes, is_averaging })
    }
}

/// The GPU to record steps on, and which of them to record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CudaGraphTarget {
    /// The index of the GPU.
    pub device: usize,
    /// Steps are recorded only where the host is the limit.
    pub only_if_host_bound: bool,
}

/// The recorded steps of a GPU.
#[derive(Debug)]
pub(crate) struct CudaGraphs {
    target: CudaGraphTarget,
    memory: Option<GraphMemoryPool>,
    steps: BTreeMap<StepKind, State>,
}

#[derive(Debug)]
enum State {
    /// The number of steps computed without a graph.
    WarmingUp(u32),
    Recorded(RecordedStep),
    /// The GPU is the limit.
    NotRecorded,
}

/// A recorded step, the tensors that it reads, and those that it writes.
#[derive(Debug)]
struct RecordedStep {
    graph: CudaGraph,
    inputs: StepInputs,
    outputs: StepOutputs,
}

impl CudaGraphs {
    /// Graphs on a GPU; none are recorded yet.
    pub fn new(target: CudaGraphTarget) -> Self {
        Self { target, memory: None, steps: BTreeMap::new() }
    }

    /// The index of the GPU.
    pub fn device(&self) -> usize {
        self.target.device
    }

    /// Runs a step: by `compute` at first, and by replaying its recording after a few steps of the
    /// same kind. The outputs are valid until the next step. All ranks call it together.
    ///
    /// # Errors
    /// An error of `compute` or the GPU; [`Error::Config`] if the step cannot be recorded.
    pub fn run_step(
        &mut self,
        kind: StepKind,
        inputs: StepInputs,
        world: &World,
        mut compute: impl FnMut(&StepInputs) -> Result<StepOutputs, Error>,
    ) -> Result<StepOutputs, Error> {
        // Averaging never stops once it has started. The graphs without averaging are not needed
        // again, and their memory is for those with it.
        if self.steps.keys().any(|other| other.is_averaging != kind.is_averaging) {
            self.clear();
        }
        let CudaGraphTarget { device, only_if_host_bound } = self.target;
        let state = self.steps.entry(kind).or_insert(State::WarmingUp(0));
        match state {
            State::NotRecorded => return compute(&inputs),
            State::Recorded(recorded) => {
                guard(|| no_grad(|| recorded.inputs.copy_from(&inputs)))?;
                return recorded.replay();
            }
            State::WarmingUp(WARMUP_STEPS) => {}
            State::WarmingUp(steps) => {
                *steps += 1;
                if !only_if_host_bound || *steps < WARMUP_STEPS {
                    return compute(&inputs);
                }
                let (outputs, launch_share) = measure_launch_share(device, || compute(&inputs))?;
                let is_recorded = launch_share > HOST_BOUND_SHARE;
                tracing::info!(
                    "launching takes {:.0} % of a step's time, so steps are {}recorded as a CUDA graph",
                    100.0 * launch_share,
                    if is_recorded { "" } else { "not " }
                );
                if !is_recorded {
                    *state = State::NotRecorded;
                }
                return Ok(outputs);
            }
        }
        let memory = self.memory.map_or_else(GraphMemoryPool::new, Ok)?;
        self.memory = Some(memory);
        match record(inputs, device, memory, world, &mut compute)? {
            Recording::Complete(recorded) => {
                let outputs = recorded.replay()?;
                *state = State::Recorded(recorded);
                Ok(outputs)
            }
            Recording::NotFinite(inputs) => compute(&inputs),
            Recording::Differs(inputs, difference) if only_if_host_bound => {
                tracing::warn!("steps are not recorded as a CUDA graph: {difference}");
                *state = State::NotRecorded;
                compute(&inputs)
            }
            Recording::Differs(_, difference) => Err(refuse_recording(&difference)),
        }
    }

    /// Discards all recordings, because tensors that they read or write have moved.
    pub fn clear(&mut self) {
        // libtorch frees the graphs' memory with the last graph, so new graphs need new memory.
        *self = Self::new(self.target);
    }
}

/// Computes a step on a GPU without any other work; returns its outputs, and the share of its time that
/// launching it took.
fn measure_launch_share(
    device: usize,
    compute: impl FnOnce() -> Result<StepOutputs, Error>,
) -> Result<(StepOutputs, f64), Error> {
    let wait = || guard(|| Cuda::synchronize(device as i64));
    wait()?;
    let started = Instant::now();
    let outputs = compute()?;
    let launched = started.elapsed();
    wait()?;
    Ok((outputs, launched.as_secs_f64() / started.elapsed().as_secs_f64().max(1e-9)))
}

/// What came of recording a step.
enum Recording {
    Complete(RecordedStep),
    /// The step's outputs are not finite, so there is nothing to compare.
    NotFinite(StepInputs),
    /// The recording computes something else; says what.
    Differs(StepInputs, String),
}

/// Records a step, without running it. To check the recording, the same step is computed without a graph
/// and replayed, both times without effect (skipped), and the outputs are compared.
fn record(
    inputs: StepInputs,
    device: usize,
    memory: GraphMemoryPool,
    world: &World,
    mut compute: impl FnMut(&StepInputs) -> Result<StepOutputs, Error>,
) -> Result<Recording, Error> {
    let scalars = guard(|| inputs.scalars.copy())?;
    let inputs = guard(|| no_grad(|| inputs.into_skipped()))?;
    let expected = Download::start(&compute(&inputs)?.0)?.wait()?.copy();
    if !is_finite(&expected) {
        return Ok(Recording::NotFinite(StepInputs { scalars, ..inputs }));
    }
    // libtorch's allocator does not recover from a capture that failed, so the run cannot go on without.
    let captured = CudaGraph::capture(device, memory, || compute(&inputs))
        .map_err(|error: Error| refuse_recording(&error.to_string()));
    // The other ranks would wait in the replay's collectives, which have no timeout.
    let (graph, outputs) = world.propagate_error(captured)?;
    let recorded = RecordedStep { graph, inputs, outputs };
    let replayed = Download::start(&recorded.replay()?.0)?;
    let difference = describe_difference(&expected, replayed.wait()?);
    guard(|| no_grad(|| recorded.inputs.scalars.shallow_clone().copy_(&scalars)))?;
    Ok(match difference {
        None => Recording::Complete(recorded),
        Some(difference) => Recording::Differs(recorded.inputs, difference),
    })
}

fn refuse_recording(why: &str) -> Error {
    let message = format!("a step cannot be recorded on this GPU: {why}; set train.cuda_graph to false");
    Error::config("train.cuda_graph", message)
}

impl RecordedStep {
    /// Starts the step on the inputs that it has now.
    fn replay(&self) -> Result<StepOutputs, Error> {
        self.graph.replay()?;
        Ok(StepOutputs(self.outputs.0.shallow_clone()))
    }
}

/// Whether the compared outputs are finite.
fn is_finite(outputs: &Tensor) -> bool {
    to_values(outputs).iter().take(COMPARED).all(|value| value.is_finite())
}

fn to_values(outputs: &Tensor) -> Vec<f32> {
    Vec::<f32>::try_from(outputs).unwrap_or_default()
}

/// Describes the difference between two outputs, if it is too large for rounding.
fn describe_difference(expected: &Tensor, replayed: &Tensor) -> Option<String> {
    let (expected, replayed) = (to_values(expected), to_values(replayed));
    let is_close = |(expected, replayed): (&f32, &f32)| {
        // NaN is close to nothing.
        (expected - replayed).abs() <= TOLERANCE * expected.abs().max(f32::MIN_POSITIVE)
    };
    let differ = !expected.iter().zip(&replayed).take(COMPARED).all(is_close);
    (differ || expected.is_empty() || expected.len() != replayed.len()).then(|| {
        let compared = |values: &[f32]| values[..values.len().min(COMPARED)].to_vec();
        format!(
            "gradient norm and loss are {:?} without a recording, and {:?} recorded",
            compared(&expected),
            compared(&replayed)
        )
    })
}

/// The GPU to record steps on, or `None` if no step is recorded. `may_wait` says whether steps may wait for
/// the GPU or share it with encoders. Then, and with several ranks, they are recorded only if the run file asks for it.
///
/// # Errors
/// [`Error::Config`] if the run file asks for it, but steps cannot be recorded on this device or with
/// this sharding.
pub(crate) fn cuda_graph_target(
    train: &TrainConfig,
    device: Device,
    ranks: usize,
    may_wait: bool,
) -> Result<Option<CudaGraphTarget>, Error> {
    let refuse = |message: String| Err(Error::config("train.cuda_graph", message));
    let only_if_host_bound = train.cuda_graph == CudaGraphMode::Auto;
    match (train.cuda_graph, device) {
        (CudaGraphMode::Never, _) => Ok(None),
        (CudaGraphMode::Auto, _) if ranks > 1 || may_wait => Ok(None),
        // Weights that come and go would have other addresses after a validation.
        (CudaGraphMode::Always, Device::Cuda(_)) if ranks > 1 && train.sharding == Sharding::FullShard => {
            refuse(
                "steps cannot be recorded with train.sharding = \"full_shard\"; set it to false, or sharding to \
                 \"shard_grad_op\""
                    .into(),
            )
        }
        (_, Device::Cuda(device)) => Ok(Some(CudaGraphTarget { device, only_if_host_bound })),
        (CudaGraphMode::Auto, _) => Ok(None),
        (CudaGraphMode::Always, _) => {
            refuse("steps are recorded on a GPU, and the device is the CPU; set it to false".into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_may_differ_by_rounding() {
        let tensor = |values: &[f32]| Tensor::from_slice(values);
        assert!(is_finite(&tensor(&[2.0, 3.0, f32::NAN])));
        assert!(!is_finite(&tensor(&[2.0, f32::NAN])) && !is_finite(&tensor(&[f32::INFINITY, 3.0])));
        assert_eq!(describe_difference(&tensor(&[2.0, 3.0, 4.0]), &tensor(&[2.02, 2.98, 9.0])), None);
        assert_eq!(describe_difference(&tensor(&[0.0, 3.0]), &tensor(&[0.0, 3.0])), None);
        for (expected, replayed) in
            [([2.0, 3.0], [2.1, 3.0]), ([2.0, 3.0], [2.0, 0.0]), ([2.0, 3.0], [2.0, f32::NAN])]
        {
            assert!(
                describe_difference(&tensor(&expected), &tensor(&replayed)).unwrap().contains("recorded")
            );
        }
        assert!(describe_difference(&tensor(&[2.0, 3.0]), &tensor(&[2.0])).is_some());
    }

    #[test]
    fn cuda_graphs_need_a_gpu_and_weights_that_stay() {
        use CudaGraphMode::{Always, Auto, Never};
        let (cpu, gpu) = (Device::Cpu, Device::Cuda(1));
        let config = |cuda_graph, sharding| TrainConfig { cuda_graph, sharding, ..TrainConfig::default() };
        for (mode, device, ranks, may_wait, only_if_host_bound) in [
            (Never, gpu, 1, false, None),
            (Always, gpu, 1, false, Some(false)),
            (Always, gpu, 1, true, Some(false)),
            (Always, gpu, 2, false, Some(false)),
            (Auto, gpu, 1, false, Some(true)),
            (Auto, gpu, 1, true, None),
            (Auto, gpu, 2, false, None),
            (Auto, cpu, 1, false, None),
        ] {
            let expected = only_if_host_bound
                .map(|only_if_host_bound| CudaGraphTarget { device: 1, only_if_host_bound });
            let train = config(mode, Sharding::ShardGradOp);
            let target = cuda_graph_target(&train, device, ranks, may_wait).unwrap();
            assert_eq!(target, expected, "{mode:?} {device:?} {ranks} {may_wait}");
        }
        assert!(cuda_graph_target(&config(Always, Sharding::FullShard), gpu, 1, false).unwrap().is_some());
        for (device, sharding, expected) in
            [(cpu, Sharding::FullShard, "the device is the CPU"), (gpu, Sharding::FullShard, "full_shard")]
        {
            let refused = cuda_graph_target(&config(Always, sharding), device, 2, false);
            let refused = refused.unwrap_err().to_string();
            assert!(refused.contains("train.cuda_graph") && refused.contains(expected), "{refused}");
        }
    }
}
