//! What to lower when a step does not fit into a GPU's memory.

use tch::Device;
use tidemill_models::GradientCheckpointing;
use tidemill_plan::memory::RESERVED_BYTES;
use tidemill_store::Bucket;
use tidemill_torch::GpuMemoryInfo;

use super::step::step_runner::{StepContext, StepRunner};
use crate::Error;
use crate::config::{Sharding, TrainConfig};

/// Adds to an error of a step what to lower, if the GPU had no memory left. Other errors stay as they are.
pub(super) fn explain_step_error(
    error: Error,
    train: &TrainConfig,
    ranks: usize,
    step_runner: &StepRunner,
    context: StepContext,
    bucket: Bucket,
) -> Error {
    let source = match error {
        Error::Torch(source) | Error::Model(tidemill_models::Error::Torch(source))
            if source.is_out_of_memory() =>
        {
            source
        }
        other => return other,
    };
    // The failed step has freed what it took.
    let memory = match step_runner.objective.device {
        Device::Cuda(device) => GpuMemoryInfo::read(device).ok(),
        _ => None,
    };
    let Some(GpuMemoryInfo { allocated, total }) = memory else { return source.into() };
    let element_bytes = step_runner.objective.kind.elt_size_in_bytes() as u64;
    let elements = step_runner.row_cost(bucket).activation_elements;
    let rows = train.phase_global_batch(context.phase).div_ceil(ranks);
    let memory = StepMemory {
        samples: rows.min(train.phase_micro_batch(context.phase)),
        gradient_checkpointing: train.gradient_checkpointing,
        shards_weights: train.sharding == Sharding::FullShard,
        state_bytes: allocated,
        sample_bytes: elements.map(|elements| elements * element_bytes),
        total_bytes: total,
    };
    Error::OutOfMemory { step: context.step + 1, advice: memory.advice(), source }
}

/// A step that did not fit.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepMemory {
    /// Samples that a rank computes at a time.
    pub samples: usize,
    pub gradient_checkpointing: GradientCheckpointing,
    /// Whether ranks share the weights, too.
    pub shards_weights: bool,
    /// Bytes that tensors take between two steps.
    pub state_bytes: u64,
    /// The most bytes of a sample that are in memory in the backward pass, if known.
    pub sample_bytes: Option<u64>,
    /// Bytes of the GPU's memory.
    pub total_bytes: u64,
}

impl StepMemory {
    /// What takes the memory, and which setting to lower by how much.
    pub fn advice(&self) -> String {
        let Self { samples, gradient_checkpointing, shards_weights, state_bytes, sample_bytes, total_bytes } =
            *self;
        let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
        let state = format!(
            "weights, gradients and optimizer state take {:.2} of {:.2} GiB",
            gib(state_bytes),
            gib(total_bytes)
        );
        let checkpointing = match gradient_checkpointing {
            GradientCheckpointing::Off => {
                ", or set train.gradient_checkpointing to \"selective\", which computes half of each MLP twice, or to true, \
                 which computes the forward pass twice"
            }
            GradientCheckpointing::Selective => {
                ", or set train.gradient_checkpointing to true, which computes the forward pass twice"
            }
            GradientCheckpointing::Full => "",
        };
        let fitting = self.fitting_samples();
        let sample =
            sample_bytes.map_or(String::new(), |bytes| format!(", and a sample about {:.3}", gib(bytes)));
        if samples <= 1 {
            let weights = if shards_weights {
                ""
            } else {
                " (with train.sharding = \"full_shard\" also of the weights)"
            };
            return format!(
                "{state}{sample}; not even one sample fits: train on more GPUs, each of which then has a part of \
                 the state{weights}, or set train.moment_precision to \"bf16\"{checkpointing}"
            );
        }
        // The formula is of what the backward pass needs, not of all that libraries take meanwhile.
        let lower = fitting.map_or(samples / 2, |fitting| fitting.clamp(1, samples - 1));
        format!(
            "{state}{sample}; set train.micro_batch to {lower}, in place of {samples} samples at a time \
             (gradients are accumulated, so the result is the same){checkpointing}"
        )
    }

    /// The samples that fit beside the state, if the bytes of one are known.
    fn fitting_samples(&self) -> Option<usize> {
        let sample_bytes = self.sample_bytes.filter(|bytes| *bytes > 0)?;
        let room = self.total_bytes.saturating_sub(self.state_bytes + RESERVED_BYTES);
        usize::try_from(room / sample_bytes).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_names_a_micro_batch_that_fits() {
        const GIB: u64 = 1 << 30;
        let memory = StepMemory {
            samples: 96,
            gradient_checkpointing: GradientCheckpointing::Off,
            shards_weights: false,
            state_bytes: 13 * GIB,
            sample_bytes: Some(GIB),
            total_bytes: 80 * GIB,
        };
        let unknown = StepMemory { sample_bytes: None, ..memory };
        let checkpointing = StepMemory { gradient_checkpointing: GradientCheckpointing::Full, ..memory };
        for (memory, expected) in [
            (memory, "to 65, in place of 96 "),
            // The formula takes it for small enough.
            (StepMemory { samples: 64, ..memory }, "to 63, in place of 64 "),
            (unknown, "to 48, in place of 96 "),
            (checkpointing, "to 65, in place of 96 "),
            (StepMemory { sample_bytes: Some(100 * GIB), ..memory }, "to 1, in place of 96 "),
            (StepMemory { samples: 1, ..memory }, "more GPUs"),
        ] {
            let advice = memory.advice();
            assert!(advice.contains(expected), "{advice}");
            let is_offered = advice.contains("train.gradient_checkpointing");
            let is_full = memory.gradient_checkpointing == GradientCheckpointing::Full;
            assert_eq!(is_offered, !is_full, "{advice}");
        }
        let selective =
            StepMemory { gradient_checkpointing: GradientCheckpointing::Selective, ..memory }.advice();
        assert!(
            selective.ends_with(
                "or set train.gradient_checkpointing to true, which computes the forward pass twice"
            )
        );
        let weights = [false, true].map(|shards_weights| {
            StepMemory { samples: 1, shards_weights, ..memory }.advice().contains("full_shard")
        });
        assert_eq!(weights, [true, false]);
        assert!(memory.advice().contains("take 13.00 of 80.00 GiB, and a sample about 1.000"));
    }
}
