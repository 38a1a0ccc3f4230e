//! The results of a step: they arrive from the device some time after the step was started.

use tch::Device;
use tidemill_telemetry::{Sample, VALUES};
use tidemill_torch::Download;

use crate::Error;
use crate::evaluation::loss_by_timestep::{FLAT_SUMS, mean_by_tenth};
use crate::metrics::ValidationMetrics;
use crate::metrics::process_memory::{gpu_memory_mib, memory_mib};
use crate::parallel::world::World;

/// A step whose results are still on the way from the device.
pub(crate) struct PendingStep {
    /// The step, counted from 1.
    pub step: u64,
    /// The step's phase.
    pub phase: usize,
    /// The step's learning rate.
    pub learning_rate: f64,
    /// The sample ids of this rank.
    pub samples: Vec<u64>,
    /// Floating-point operations for each row, forward and backward.
    pub flops_per_row: f64,
    /// The validation loss after the step, if it was computed.
    pub validation: Option<ValidationMetrics>,
    /// The loss above which the device has skipped the step.
    pub skip_above: f64,
    /// [`StepOutputs`](super::step_inputs::StepOutputs) on the way to the host.
    pub outputs: Download,
}

/// The results of a step, which are the same on all ranks.
#[derive(Clone, Debug)]
pub(crate) struct StepResults {
    /// Mean loss of the global batch.
    pub loss: f64,
    /// Global norm of the gradients before clipping.
    pub grad_norm: f64,
    /// Rows of the batch that could be read.
    pub rows: u64,
    /// Whether any rank was still writing a checkpoint when the step started.
    pub is_any_rank_writing: bool,
    /// Memory of each rank's process, in MiB.
    pub memory_mib: Vec<u64>,
    /// Peak memory of tensors on each rank's GPU so far, in MiB, if any rank has a GPU.
    pub gpu_memory_mib: Option<Vec<u64>>,
    /// What each rank's GPU and machine did, once all ranks have read that.
    pub telemetry: Option<Vec<Sample>>,
    /// Mean unweighted error of the rows in each tenth of the timesteps; none where there is no
    /// row.
    pub loss_by_timestep: Vec<Option<f64>>,
}

/// Values that each rank has at positions of its own: memory of process and GPU, telemetry.
const RANK_VALUES: usize = 2 + VALUES;

/// The values that a rank adds to the step's sums besides its loss and the norm of its gradients:
/// its number of rows, whether it is writing a checkpoint, and, at positions of its own, the memory
/// of its process and its GPU, and what its GPU and machine do.
pub(super) fn rank_report(
    rows: usize,
    is_writing: bool,
    telemetry: Option<&Sample>,
    world: &World,
    device: Device,
) -> Vec<f32> {
    let memory = [memory_mib(), gpu_memory_mib(device)].map(|mib| mib as f32);
    let mut report = vec![rows as f32, f32::from(is_writing)];
    report.resize(report.len() + RANK_VALUES * world.size(), 0.0);
    let own = &mut report[2 + RANK_VALUES * world.rank()..][..RANK_VALUES];
    own[..memory.len()].copy_from_slice(&memory);
    own[memory.len()..].copy_from_slice(&Sample::to_values(telemetry));
    report
}

impl PendingStep {
    /// Waits until the device has done the step.
    ///
    /// # Errors
    /// If the device fails.
    pub fn wait(&self) -> Result<StepResults, Error> {
        let outputs = Vec::<f32>::try_from(self.outputs.wait()?);
        let outputs = outputs.map_err(|e| Error::World(format!("the sums of a step cannot be read: {e}")))?;
        let malformed = || Error::World(format!("a step has the sums {outputs:?}"));
        let (outputs_before, by_timestep) = outputs.split_last_chunk::<FLAT_SUMS>().ok_or_else(malformed)?;
        let [grad_norm, loss, _, rows, writing, by_rank @ ..] = outputs_before else {
            return Err(malformed());
        };
        let (by_rank, _) = by_rank.as_chunks::<RANK_VALUES>();
        let memory = by_rank.iter().map(|[resident, ..]| *resident as u64).collect();
        let gpu_memory: Vec<u64> = by_rank.iter().map(|[_, gpu, ..]| *gpu as u64).collect();
        let telemetry = by_rank.iter().map(|[_, _, telemetry @ ..]| Sample::from_values(*telemetry));
        Ok(StepResults {
            // Divided in f32, so that it is the value that the device has compared.
            loss: f64::from(loss / rows),
            grad_norm: f64::from(*grad_norm),
            rows: *rows as u64,
            is_any_rank_writing: *writing > 0.0,
            memory_mib: memory,
            gpu_memory_mib: gpu_memory.iter().any(|mib| *mib > 0).then_some(gpu_memory),
            telemetry: telemetry.collect(),
            loss_by_timestep: mean_by_tenth(by_timestep),
        })
    }
}
