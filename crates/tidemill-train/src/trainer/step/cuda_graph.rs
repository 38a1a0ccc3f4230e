//! CUDA graphs (`train.cuda_graph`): a step on a GPU is recorded once, and then started as a whole.

use std::collections::BTreeMap;

use tch::{Device, Tensor, no_grad};
use tidemill_torch::{CudaGraph, Download, GraphMemoryPool, guard};

use super::step_inputs::{StepInputs, StepOutputs};
use crate::Error;

/// Steps of a kind that are computed without a graph before one is recorded. After these,
/// everything that a step creates exists: moments, averages, compiled kernels, workspaces of
/// libraries.
const WARMUP_STEPS: u32 = 3;

/// The largest relative difference between the outputs of a step and its recording. Kernels that
/// sum in no fixed order round differently.
const TOLERANCE: f32 = 0.02;

/// The number of outputs that are compared: the norm of the gradients, and the sum of the losses.
const COMPARED: usize = 2;

/// Steps of one kind have a graph in common: the shapes of their inputs, and whether weights are
/// averaged.
type StepKind = (Vec<Vec<i64>>, bool);

/// The recorded steps of a GPU.
#[derive(Debug)]
pub(crate) struct CudaGraphs {
    device: usize,
    memory: Option<GraphMemoryPool>,
    steps: BTreeMap<StepKind, State>,
}

#[derive(Debug)]
enum State {
    /// The number of steps computed without a graph.
    WarmingUp(u32),
    Recorded(RecordedStep),
}

/// A recorded step, the tensors that it reads, and those that it writes.
#[derive(Debug)]
struct RecordedStep {
    graph: CudaGraph,
    inputs: StepInputs,
    outputs: StepOutputs,
}

impl CudaGraphs {
    /// Graphs on the GPU with this index; none are recorded yet.
    pub fn new(device: usize) -> Self {
        Self { device, memory: None, steps: BTreeMap::new() }
    }

    /// The index of the GPU.
    pub fn device(&self) -> usize {
        self.device
    }

    /// Runs a step: by `compute` at first, and by replaying its recording after a few steps of the
    /// same kind. The outputs are valid until the next step.
    ///
    /// # Errors
    /// An error of `compute` or the GPU; [`Error::Config`] if the step cannot be recorded.
    pub fn run_step(
        &mut self,
        inputs: StepInputs,
        is_averaging: bool,
        mut compute: impl FnMut(&StepInputs) -> Result<StepOutputs, Error>,
    ) -> Result<StepOutputs, Error> {
        let kind = (inputs.shapes(), is_averaging);
        // Averaging never stops once it has started. The graphs without averaging are not needed
        // again, and their memory is for those with it.
        if self.steps.keys().any(|(_, averages)| *averages != is_averaging) {
            self.clear();
        }
        let state = self.steps.entry(kind).or_insert(State::WarmingUp(0));
        if let State::WarmingUp(steps) = state
            && *steps < WARMUP_STEPS
        {
            *steps += 1;
            return compute(&inputs);
        }
        if let State::Recorded(recorded) = state {
            guard(|| no_grad(|| recorded.inputs.copy_from(&inputs)))?;
            recorded.graph.replay()?;
            return Ok(StepOutputs(recorded.outputs.0.shallow_clone()));
        }
        let memory = self.memory.map_or_else(GraphMemoryPool::new, Ok)?;
        self.memory = Some(memory);
        match RecordedStep::record(inputs, self.device, memory, &mut compute)? {
            Ok(recorded) => {
                let outputs = StepOutputs(recorded.outputs.0.shallow_clone());
                *state = State::Recorded(recorded);
                Ok(outputs)
            }
            Err(inputs) => compute(&inputs),
        }
    }

    /// Discards all recordings, because tensors that they read or write have moved.
    pub fn clear(&mut self) {
        // libtorch frees the graphs' memory with the last graph, so new graphs need new memory.
        *self = Self::new(self.device);
    }
}

impl RecordedStep {
    /// Records a step and runs it. To check the recording, the same step is first computed without
    /// a graph and without effect (skipped), and both outputs are compared. If the outputs are not
    /// finite, there is nothing to compare: the step is neither recorded nor run, and its inputs
    /// are returned.
    fn record(
        inputs: StepInputs,
        device: usize,
        memory: GraphMemoryPool,
        mut compute: impl FnMut(&StepInputs) -> Result<StepOutputs, Error>,
    ) -> Result<Result<Self, StepInputs>, Error> {
        let refuse = |why: String| {
            let message =
                format!("a step cannot be recorded on this GPU: {why}; set train.cuda_graph to false");
            Error::config("train.cuda_graph", message)
        };
        let scalars = guard(|| inputs.scalars.copy())?;
        let skipped = guard(|| no_grad(|| inputs.into_skipped()))?;
        let expected = Download::start(&compute(&skipped)?.0)?.wait()?.copy();
        let inputs = StepInputs { scalars, ..skipped };
        if !is_finite(&expected) {
            return Ok(Err(inputs));
        }
        let (graph, outputs) = CudaGraph::capture(device, memory, || compute(&inputs))
            .map_err(|error: Error| refuse(error.to_string()))?;
        graph.replay()?;
        let replayed = Download::start(&outputs.0)?;
        match describe_difference(&expected, replayed.wait()?) {
            None => Ok(Ok(Self { graph, inputs, outputs })),
            Some(difference) => Err(refuse(format!(
                "{difference}; the weights in memory may be wrong, those of the last checkpoint are not"
            ))),
        }
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

/// The index of the GPU to record steps on, or none if `train.cuda_graph` is off.
///
/// # Errors
/// [`Error::Config`] if steps cannot be recorded on this device, or with several ranks.
pub(crate) fn cuda_graph_device(
    is_enabled: bool,
    device: Device,
    ranks: usize,
) -> Result<Option<usize>, Error> {
    let refuse = |message: String| Err(Error::config("train.cuda_graph", message));
    match (is_enabled, device) {
        (false, _) => Ok(None),
        (true, _) if ranks > 1 => refuse(format!(
            "steps can be recorded with one rank only, and this run has {ranks}; set it to false"
        )),
        (true, Device::Cuda(index)) => Ok(Some(index)),
        (true, _) => refuse("steps are recorded on a GPU, and the device is the CPU; set it to false".into()),
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
    fn cuda_graphs_need_one_rank_on_a_gpu() {
        assert_eq!(cuda_graph_device(false, Device::Cuda(1), 2).unwrap(), None);
        assert_eq!(cuda_graph_device(false, Device::Cpu, 1).unwrap(), None);
        assert_eq!(cuda_graph_device(true, Device::Cuda(1), 1).unwrap(), Some(1));
        for (device, ranks, expected) in
            [(Device::Cpu, 1, "the device is the CPU"), (Device::Cuda(0), 2, "this run has 2")]
        {
            let refused = cuda_graph_device(true, device, ranks).unwrap_err().to_string();
            assert!(refused.contains("train.cuda_graph") && refused.contains(expected), "{refused}");
        }
    }
}
