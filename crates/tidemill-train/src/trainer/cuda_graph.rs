//! Steps on a GPU that are recorded once and then started as a whole (`train.cuda_graph`).

use std::collections::BTreeMap;

use tch::{Device, Tensor, no_grad};
use tidemill_torch::{CudaGraph, Download, GraphMemoryPool, guard};

use super::step::{Answers, StepInputs};
use crate::Error;

/// Steps of a kind that are taken as always before one is recorded: by then everything that a step leaves behind is there (moments,
/// averages, compiled kernels, workspaces of libraries).
const BEFORE: u32 = 3;

/// How far apart answers may be: kernels that add up in no fixed order round differently.
const ROUNDING: f32 = 0.02;

/// What makes steps different from each other: the shapes of their inputs, and whether weights are averaged.
pub(super) type Kind = (Vec<Vec<i64>>, bool);

/// The steps that are recorded.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    memory: Option<GraphMemoryPool>,
    steps: BTreeMap<Kind, State>,
}

#[derive(Debug)]
enum State {
    /// So many were taken.
    Seen(u32),
    There(Step),
}

/// A recorded step: where it takes its inputs from, and where it leaves its answers.
#[derive(Debug)]
struct Step {
    graph: CudaGraph,
    inputs: StepInputs,
    answers: Answers,
}

impl Recorded {
    /// Takes a step on `device`, by `compute` or, once a few of its kind were, as it is recorded then. The answers hold until the next
    /// step.
    ///
    /// # Errors
    /// Of `compute`, if the GPU fails, and if the step cannot be recorded.
    pub fn take(
        &mut self,
        kind: Kind,
        inputs: StepInputs,
        device: usize,
        mut compute: impl FnMut(&StepInputs) -> Result<Answers, Error>,
    ) -> Result<Answers, Error> {
        // Once weights are averaged, they always are: the others' memory is for these.
        if self.steps.keys().any(|(_, averaged)| *averaged != kind.1) {
            self.clear();
        }
        let state = self.steps.entry(kind).or_insert(State::Seen(0));
        if let State::Seen(steps) = state
            && *steps < BEFORE
        {
            *steps += 1;
            return compute(&inputs);
        }
        if let State::There(Step { graph, inputs: read, answers }) = state {
            guard(|| no_grad(|| read.overwrite(&inputs)))?;
            graph.replay()?;
            return Ok(Answers(answers.0.shallow_clone()));
        }
        let memory = self.memory.map_or_else(GraphMemoryPool::new, Ok)?;
        self.memory = Some(memory);
        match Step::record(inputs, device, memory, &mut compute)? {
            Ok(step) => {
                let answers = Answers(step.answers.0.shallow_clone());
                *state = State::There(step);
                Ok(answers)
            }
            Err(inputs) => compute(&inputs),
        }
    }

    /// Forgets them: what they read or write is there no more.
    pub fn clear(&mut self) {
        // Their memory goes with the last of them, and libtorch knows it no longer.
        *self = Self::default();
    }
}

impl Step {
    /// Records a step and takes it. What it answers has to be what the same step answers when it is not recorded. If that is nothing to
    /// compare with, for it is not finite, it is neither recorded nor taken: its inputs come back.
    fn record(
        inputs: StepInputs,
        device: usize,
        memory: GraphMemoryPool,
        mut compute: impl FnMut(&StepInputs) -> Result<Answers, Error>,
    ) -> Result<Result<Self, StepInputs>, Error> {
        let refuse = |why: String| {
            let message = format!("a step cannot be recorded on this GPU: {why}; set it to false");
            Error::config("train.cuda_graph", message)
        };
        let numbers = guard(|| inputs.numbers.copy())?;
        let left_out = guard(|| no_grad(|| inputs.left_out()))?;
        let expected = Download::start(&compute(&left_out)?.0)?.wait()?.copy();
        let inputs = StepInputs { numbers, ..left_out };
        if !is_finite(&expected) {
            return Ok(Err(inputs));
        }
        let (graph, answers) = CudaGraph::capture(device, memory, || compute(&inputs))
            .map_err(|error: Error| refuse(error.to_string()))?;
        graph.replay()?;
        let answered = Download::start(&answers.0)?;
        match differs(&expected, answered.wait()?) {
            None => Ok(Ok(Self { graph, inputs, answers })),
            Some(why) => Err(refuse(format!("{why}; weights may be spoilt, the last checkpoint's are not"))),
        }
    }
}

/// Whether a step's answers are as they should be: the norm of the gradients, and the sum of the losses.
fn is_finite(answers: &Tensor) -> bool {
    numbers(answers).iter().take(2).all(|number| number.is_finite())
}

fn numbers(answers: &Tensor) -> Vec<f32> {
    Vec::<f32>::try_from(answers).unwrap_or_default()
}

/// How far apart two of a step's answers are, if it is too far for rounding.
fn differs(expected: &Tensor, answered: &Tensor) -> Option<String> {
    let (expected, answered) = (numbers(expected), numbers(answered));
    let near = |(expected, answered): (&f32, &f32)| {
        // What is no number is near to nothing.
        (expected - answered).abs() <= ROUNDING * expected.abs().max(f32::MIN_POSITIVE)
    };
    let differ = !expected.iter().zip(&answered).take(2).all(near);
    (differ || expected.is_empty() || expected.len() != answered.len()).then(|| {
        let first = |numbers: &[f32]| numbers[..numbers.len().min(2)].to_vec();
        format!(
            "norm of the gradients and loss are {:?}, and recorded {:?}",
            first(&expected),
            first(&answered)
        )
    })
}

/// The GPU that steps are to be recorded on, if they are to be.
///
/// # Errors
/// If they cannot be on this device, or not with so many ranks.
pub(super) fn recorded_on(cuda_graph: bool, device: Device, ranks: usize) -> Result<Option<usize>, Error> {
    let refuse = |message: String| Err(Error::config("train.cuda_graph", message));
    match (cuda_graph, device) {
        (false, _) => Ok(None),
        (true, _) if ranks > 1 => refuse(format!("steps of one rank can be recorded, and these are {ranks}")),
        (true, Device::Cuda(index)) => Ok(Some(index)),
        (true, _) => refuse("steps are recorded on a GPU, and the device is the CPU; set it to false".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_may_differ_by_rounding() {
        let of = |numbers: &[f32]| Tensor::from_slice(numbers);
        assert!(is_finite(&of(&[2.0, 3.0, f32::NAN])));
        assert!(!is_finite(&of(&[2.0, f32::NAN])) && !is_finite(&of(&[f32::INFINITY, 3.0])));
        assert_eq!(differs(&of(&[2.0, 3.0, 4.0]), &of(&[2.02, 2.98, 9.0])), None);
        assert_eq!(differs(&of(&[0.0, 3.0]), &of(&[0.0, 3.0])), None);
        for (expected, answered) in
            [([2.0, 3.0], [2.1, 3.0]), ([2.0, 3.0], [2.0, 0.0]), ([2.0, 3.0], [2.0, f32::NAN])]
        {
            assert!(differs(&of(&expected), &of(&answered)).unwrap().contains("recorded"));
        }
        assert!(differs(&of(&[2.0, 3.0]), &of(&[2.0])).is_some());
    }

    #[test]
    fn steps_are_recorded_on_one_gpu() {
        assert_eq!(recorded_on(false, Device::Cuda(1), 2).unwrap(), None);
        assert_eq!(recorded_on(false, Device::Cpu, 1).unwrap(), None);
        assert_eq!(recorded_on(true, Device::Cuda(1), 1).unwrap(), Some(1));
        for (device, ranks, says) in
            [(Device::Cpu, 1, "the device is the CPU"), (Device::Cuda(0), 2, "are 2")]
        {
            let refused = recorded_on(true, device, ranks).unwrap_err().to_string();
            assert!(refused.contains("train.cuda_graph") && refused.contains(says), "{refused}");
        }
    }
}
