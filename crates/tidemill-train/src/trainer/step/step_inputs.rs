//! What a step reads from the host, and what it leaves on the device.

use tch::Tensor;

use crate::objective::micro_batch::MicroBatch;

/// Index of the learning rate in [`StepInputs::scalars`].
pub(super) const LEARNING_RATE: i64 = 0;
/// Index of the step's number, counted from 1.
pub(super) const STEP_NUMBER: i64 = 1;
/// Index of the loss above which the device skips the step.
pub(super) const SKIP_ABOVE: i64 = 2;
/// Index of the share that averaged weights take of the new weights.
pub(super) const EMA_SHARE: i64 = 3;
/// Index of the first value of this rank's report, which is summed over the ranks.
const RANK_REPORT: i64 = 4;

/// Everything that a step reads from the host, on the device.
#[derive(Debug)]
pub(crate) struct StepInputs {
    /// This rank's rows.
    pub micro_batches: Vec<MicroBatch>,
    /// f32: [`LEARNING_RATE`], [`STEP_NUMBER`], [`SKIP_ABOVE`], [`EMA_SHARE`], then this rank's
    /// report.
    pub scalars: Tensor,
}

/// What a step leaves on the device, f32: the global norm of the gradients; then sums over all
/// ranks: the losses, the squared norms, the ranks' reports, and errors and numbers of rows by
/// tenth of the timesteps.
#[derive(Debug)]
pub(crate) struct StepOutputs(pub Tensor);

impl StepInputs {
    /// One of the scalars, as a tensor [].
    ///
    /// # Panics
    /// Where tch would: run it in [`guard`](tidemill_torch::guard()).
    pub fn scalar(&self, index: i64) -> Tensor {
        self.scalars.get(index)
    }

    /// This rank's report.
    ///
    /// # Panics
    /// Where tch would: run it in [`guard`](tidemill_torch::guard()).
    pub fn rank_report(&self) -> Tensor {
        self.scalars.narrow(0, RANK_REPORT, self.scalars.size()[0] - RANK_REPORT)
    }

    fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.micro_batches.iter().flat_map(MicroBatch::tensors).chain([&self.scalars])
    }

    /// The shapes of all tensors. Steps with different shapes compute different things.
    pub fn shapes(&self) -> Vec<Vec<i64>> {
        self.tensors().map(Tensor::size).collect()
    }

    /// Copies the values of other inputs of the same shapes into these.
    ///
    /// # Panics
    /// Where tch would: run it in [`guard`](tidemill_torch::guard()).
    pub fn copy_from(&self, others: &Self) {
        self.tensors().zip(others.tensors()).for_each(|(own, other)| own.shallow_clone().copy_(other));
    }

    /// Makes the device skip the step: the same rows give outputs, but nothing else changes.
    ///
    /// # Panics
    /// Where tch would: run it in [`guard`](tidemill_torch::guard()).
    pub fn into_skipped(self) -> Self {
        // No loss is below 0.
        let _ = self.scalars.get(SKIP_ABOVE).fill_(-1.0);
        self
    }
}
