//! The numbers that a run reports after each step. Their names are the keys in `metrics.jsonl`.

use serde::Serialize;
use tidemill_telemetry::Sample;

use crate::parallel::communication_time::StepCommunication;

/// The numbers of one optimizer step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepMetrics {
    /// The step, counted from 1 over all phases.
    pub step: u64,
    /// The phase, counted from 0.
    pub phase: usize,
    /// The phase's resolution in pixels.
    pub resolution: u32,
    /// Samples trained on so far.
    pub samples: u64,
    /// Mean loss of the global batch.
    pub loss: f64,
    /// Global norm of the gradients before clipping.
    pub grad_norm: f64,
    /// Learning rate.
    pub learning_rate: f64,
    /// Images per second over all ranks, since the last line of metrics.
    pub images_per_second: f64,
    /// TFLOP/s of each rank over the same time, counting forward and backward passes as
    /// [`TrainableDenoiser::forward_flops`] does.
    ///
    /// [`TrainableDenoiser::forward_flops`]: tidemill_models::TrainableDenoiser::forward_flops
    pub tflops: f64,
    /// Model FLOPs utilisation: `tflops` as a share of the device's peak, if the run file gives the
    /// peak.
    pub mfu: Option<f64>,
    /// Share of the time spent waiting for data.
    pub data_wait: f64,
    /// Seconds of the step in which ranks communicated, and in which computation waited for that.
    pub communication: StepCommunication,
    /// Resident memory of each rank's process, in MiB.
    pub memory_mib: Vec<u64>,
    /// Peak memory of tensors on each rank's GPU before the step, in MiB, if any rank has a GPU.
    pub gpu_memory_mib: Option<Vec<u64>>,
    /// What each rank's GPU and machine did in the last seconds; in the last line of each window of
    /// `train.log_every` steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub telemetry: Option<Vec<Sample>>,
    /// Mean unweighted loss of the rows in each tenth of the timesteps, from least noise to most;
    /// none where the step has no row.
    pub loss_by_timestep: Vec<Option<f64>>,
    /// The last step with a committed checkpoint.
    pub checkpoint: u64,
    /// The validation loss after this step, if it was computed then.
    #[serde(flatten)]
    pub validation: Option<ValidationMetrics>,
}

/// The loss on rows that are never trained on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ValidationMetrics {
    /// Mean squared error of the prediction over all rows of the validation set.
    #[serde(rename = "validation_loss")]
    pub loss: f64,
    /// The same loss with averaged (EMA) weights, once averaging has started.
    #[serde(rename = "validation_ema_loss")]
    pub ema_loss: Option<f64>,
    /// Number of rows.
    #[serde(rename = "validation_rows")]
    pub rows: u64,
    /// Seconds that the validation took.
    #[serde(rename = "validation_seconds")]
    pub seconds: f64,
    /// Mean loss of the rows in each tenth of the timesteps, from least noise to most.
    #[serde(rename = "validation_loss_by_timestep")]
    pub loss_by_timestep: Vec<Option<f64>>,
}

/// Totals of a process that are not part of a step's metrics.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RunCounters {
    /// Failed attempts to write a checkpoint.
    pub failed_checkpoints: u64,
    /// Seconds that steps waited for checkpoints.
    pub checkpoint_seconds: f64,
    /// Rows missing in batches because they could not be read.
    pub skipped_rows: u64,
    /// Steps that left the weights unchanged.
    pub skipped_steps: u64,
    /// Times that the run rolled back to a checkpoint.
    pub rollbacks: u64,
    /// The last validation loss.
    pub validation_loss: Option<f64>,
    /// The last validation loss with averaged weights.
    pub validation_ema_loss: Option<f64>,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Plausible metrics of a step.
    pub fn metrics_of_step(step: u64) -> StepMetrics {
        StepMetrics {
            step,
            phase: 0,
            resolution: 64,
            samples: step * 4,
            loss: 0.5,
            grad_norm: 1.0,
            learning_rate: 1e-4,
            images_per_second: 10.0,
            tflops: 0.5,
            mfu: None,
            data_wait: 0.0,
            communication: StepCommunication::default(),
            memory_mib: vec![100],
            gpu_memory_mib: None,
            telemetry: None,
            loss_by_timestep: vec![None; 10],
            checkpoint: 0,
            validation: None,
        }
    }
}
