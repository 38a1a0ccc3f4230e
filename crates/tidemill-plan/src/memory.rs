//! The memory of a rank's GPU: weights, gradients and optimizer state, as the trainer lays them out,
//! and what a micro-batch adds.

use serde::{Deserialize, Serialize};

/// `train.sharding`: which ranks share gradients and optimizer state. Weights are whole on all ranks, but for
/// `FullShard`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sharding {
    /// All ranks share them: each has its partition, as in FSDP's `SHARD_GRAD_OP`.
    ShardGradOp,
    /// All ranks share them, and the weights: a rank has the weights of a part of the network only while it runs, as in
    /// FSDP's `FULL_SHARD`.
    FullShard,
    /// The ranks of a node share them, and all nodes have the same, as in FSDP's `_HYBRID_SHARD_ZERO2`.
    /// Weights are gathered within a node only.
    HybridShard,
    /// Each rank has all of them, as in DDP.
    None,
}

impl Sharding {
    /// The number of ranks that share the state, of so many in all and on each node.
    pub fn partitions(self, ranks: u64, ranks_per_node: u64) -> u64 {
        match self {
            Self::ShardGradOp | Self::FullShard => ranks,
            Self::HybridShard => ranks_per_node.min(ranks),
            Self::None => 1,
        }
    }
}

/// How the trainer keeps a network: what decides over its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLayout {
    /// The number of trained parameters.
    pub parameters: u64,
    /// The number of parameters whose weights are there at a time: all, unless they are sharded.
    pub resident_parameters: u64,
    /// Bytes of constants beside the parameters, which each rank has whole: a transformer's positions.
    pub buffer_bytes: u64,
    /// The number of ranks.
    pub ranks: u64,
    /// The number of ranks that share gradients and state: 1 if each rank has all of it (DDP).
    pub partitions: u64,
    /// Bytes of a weight that the network computes with: 2 in bf16, 4 in f32.
    pub weight_bytes: u64,
    /// Bytes of a gradient between ranks.
    pub reduce_bytes: u64,
    /// Bytes of each of AdamW's two moments of a parameter.
    pub moment_bytes: u64,
    /// Whether weights are averaged (EMA).
    pub has_ema: bool,
    /// Whether a step has several micro-batches.
    pub is_accumulated: bool,
    /// Bytes of a gradient bucket.
    pub bucket_bytes: u64,
}

/// Bytes of one rank between two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StateBytes {
    /// Weights that the network computes with.
    pub weights: u64,
    /// Gradients, and buckets of them on their way.
    pub gradients: u64,
    /// Master weights in f32, AdamW's moments, averaged weights.
    pub optimizer: u64,
}

/// Bytes of a gradient bucket, for gradients of so many bytes in all. With few buckets the first one
/// is ready late; with many, each has its overhead.
pub fn default_bucket_bytes(gradient_bytes: u64) -> u64 {
    (gradient_bytes / 8).clamp(1 << 20, 32 << 20)
}

/// Bytes of an f32.
const F32: u64 = 4;
/// Buckets that are filled or on their way at a time.
const BUCKETS_IN_USE: u64 = 3;

impl StateBytes {
    /// The bytes of a rank with this layout.
    pub fn new(layout: &MemoryLayout) -> Self {
        let all = layout.parameters;
        let is_sharded = layout.partitions > 1;
        let own = all.div_ceil(layout.partitions.max(1));
        let gradients = match (layout.ranks > 1, is_sharded, layout.is_accumulated) {
            // Gradients stay where the backward pass puts them.
            (false, _, false) => all * layout.weight_bytes,
            (_, true, false) => own * F32 + BUCKETS_IN_USE * layout.bucket_bytes,
            (_, true, true) => (all + own) * F32,
            _ => all * F32,
        };
        // Weights in f32 that are not sharded are the master weights.
        let is_shared = !is_sharded && layout.weight_bytes == F32;
        let copies = u64::from(!is_shared) + u64::from(layout.has_ema);
        Self {
            weights: layout.resident_parameters * layout.weight_bytes + layout.buffer_bytes,
            gradients,
            optimizer: own * (copies * F32 + 2 * layout.moment_bytes),
        }
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        self.weights + self.gradients + self.optimizer
    }
}

/// A moment of a backward pass, which frees what the forward pass kept, and makes gradients.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BackwardMoment {
    /// Bytes of one image's activations.
    pub bytes: u64,
    /// The share of all gradients that there are, 0 to 1.
    pub gradient_share: f64,
}

/// Memory that libraries take for their work (cuDNN, cuBLAS).
pub const WORKSPACE_BYTES: u64 = 256 << 20;

/// Memory of a GPU that no tensor gets: CUDA's context, libraries, and what the allocator cannot
/// use.
pub const RESERVED_BYTES: u64 = 2 << 30;

/// What a phase needs of a GPU's memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GpuMemory {
    /// Weights, gradients and optimizer state.
    pub state_bytes: u64,
    /// Activations of one image at most; `None` for a network whose activations are not counted.
    pub activation_bytes_per_image: Option<u64>,
    /// The most that tensors take at a time in a step (`gpu_memory_mib` of the metrics), if known.
    pub peak_bytes: Option<u64>,
    /// That, and what no tensor gets.
    pub needed_bytes: Option<u64>,
    /// The GPU's memory, if known.
    pub available_bytes: Option<u64>,
    /// The largest micro-batch that fits, if known; 0 if not even the state does.
    pub largest_micro_batch: Option<u64>,
}

impl GpuMemory {
    /// The memory of a rank with this state, whose micro-batch has `images`. `moments` are those of a backward pass at
    /// which it may be fullest, if they are known. `is_accumulated` says whether a step has several micro-batches: then
    /// gradients are there from the start.
    pub fn new(
        state: &StateBytes,
        moments: Option<&[BackwardMoment]>,
        images: u64,
        is_accumulated: bool,
        available: Option<u64>,
    ) -> Self {
        // Bytes without images.
        let fixed = |moment: &BackwardMoment| {
            let share = if is_accumulated { 1.0 } else { moment.gradient_share };
            state.weights + state.optimizer + WORKSPACE_BYTES + (state.gradients as f64 * share) as u64
        };
        let peak = |moments: &[BackwardMoment]| {
            moments.iter().map(|moment| fixed(moment) + images * moment.bytes).max().unwrap_or(0)
        };
        let all = [BackwardMoment { bytes: 0, gradient_share: 1.0 }];
        let fitting = |available: u64| {
            let left = |moment| available.saturating_sub(fixed(moment) + RESERVED_BYTES);
            match moments {
                Some(moments) => moments.iter().map(|moment| left(moment) / moment.bytes.max(1)).min(),
                None => (left(&all[0]) == 0).then_some(0),
            }
        };
        let peak_bytes = moments.map(peak);
        Self {
            state_bytes: state.total(),
            activation_bytes_per_image: moments
                .map(|moments| moments.iter().map(|moment| moment.bytes).max().unwrap_or(0)),
            peak_bytes,
            needed_bytes: peak_bytes.map(|bytes| bytes + RESERVED_BYTES),
            available_bytes: available,
            largest_micro_batch: available.and_then(fitting),
        }
    }
}

impl GpuMemory {
    /// What is needed where each of two is in memory at its own time.
    #[must_use]
    pub fn max(self, other: &Self) -> Self {
        let most = |own: Option<u64>, other: Option<u64>| Some(own?.max(other?));
        let least = |own: Option<u64>, other: Option<u64>| [own, other].into_iter().flatten().min();
        Self {
            peak_bytes: most(self.peak_bytes, other.peak_bytes),
            needed_bytes: most(self.needed_bytes, other.needed_bytes),
            largest_micro_batch: least(self.largest_micro_batch, other.largest_micro_batch),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> MemoryLayout {
        MemoryLayout {
            parameters: 1000,
            resident_parameters: 1000,
            buffer_bytes: 0,
            ranks: 4,
            partitions: 4,
            weight_bytes: 2,
            reduce_bytes: 4,
            moment_bytes: 4,
            has_ema: true,
            is_accumulated: false,
            bucket_bytes: 10,
        }
    }

    #[test]
    fn each_setting_changes_its_own_part() {
        let bytes = |layout: MemoryLayout| {
            let StateBytes { weights, gradients, optimizer } = StateBytes::new(&layout);
            [weights, gradients, optimizer]
        };
        assert_eq!(bytes(layout()), [2000, 1030, 4000]);
        assert_eq!(bytes(MemoryLayout { is_accumulated: true, ..layout() }), [2000, 5000, 4000]);
        assert_eq!(bytes(MemoryLayout { resident_parameters: 70, ..layout() }), [140, 1030, 4000]);
        assert_eq!(bytes(MemoryLayout { partitions: 1, ..layout() }), [2000, 4000, 16000]);
        assert_eq!(bytes(MemoryLayout { ranks: 1, partitions: 1, ..layout() }), [2000, 2000, 16000]);
        assert_eq!(bytes(MemoryLayout { has_ema: false, moment_bytes: 2, ..layout() }), [2000, 1030, 2000]);
        // f32 on one rank: the weights are the master weights.
        assert_eq!(
            bytes(MemoryLayout { ranks: 1, partitions: 1, weight_bytes: 4, ..layout() }),
            [4000, 4000, 12000]
        );
    }

    #[test]
    fn memory_is_fullest_at_the_start_or_at_the_end_of_the_backward_pass() {
        let state = StateBytes { weights: 100, gradients: 50, optimizer: 200 };
        let moment = |bytes, gradient_share| BackwardMoment { bytes, gradient_share };
        let moments = [moment(10, 0.0), moment(1, 1.0)];
        let peak = |images, is_accumulated| {
            let memory = GpuMemory::new(&state, Some(&moments), images, is_accumulated, None);
            memory.peak_bytes.unwrap() - WORKSPACE_BYTES
        };
        assert_eq!([1, 5, 6, 100].map(|images| peak(images, false)), [351, 355, 360, 1300]);
        assert_eq!([1, 100].map(|images| peak(images, true)), [360, 1350]);
        // Or in between, where a layer is large that has most of the parameters.
        let moments = [moments[0], moment(9, 0.8), moments[1]];
        let between = GpuMemory::new(&state, Some(&moments), 10, false, None);
        assert_eq!(between.peak_bytes.unwrap() - WORKSPACE_BYTES, 300 + 40 + 90);
    }

    #[test]
    fn the_largest_micro_batch_fits_and_one_more_does_not() {
        let state = StateBytes { weights: 1 << 30, gradients: 1 << 30, optimizer: 1 << 30 };
        let (start, available) = (1u64 << 28, 16u64 << 30);
        for at_end in [0, start / 8, start] {
            let moments = [(start, 0.0), (at_end, 1.0)]
                .map(|(bytes, gradient_share)| BackwardMoment { bytes, gradient_share });
            for is_accumulated in [false, true] {
                let memory = |images, available| {
                    GpuMemory::new(&state, Some(&moments), images, is_accumulated, available)
                };
                let largest = memory(8, Some(available)).largest_micro_batch.unwrap_or_default();
                assert!(memory(largest, None).needed_bytes.unwrap() <= available);
                assert!(memory(largest + 1, None).needed_bytes.unwrap() > available);
                assert_eq!(memory(8, Some(1 << 30)).largest_micro_batch, Some(0));
            }
        }
    }

    #[test]
    fn what_is_in_memory_at_another_time_counts_if_it_is_more() {
        let moment = |bytes, gradient_share| BackwardMoment { bytes, gradient_share };
        let state = |weights| StateBytes { weights, gradients: 0, optimizer: 0 };
        let available = Some(16 << 30);
        let step = GpuMemory::new(&state(1 << 30), Some(&[moment(1 << 30, 1.0)]), 2, false, available);
        for (weights, peak, largest) in
            [(1 << 30, 3 << 30, 12), (8 << 30, 8 << 30, 12), (15 << 30, 15 << 30, 0)]
        {
            let other = GpuMemory::new(&state(weights), Some(&[moment(0, 1.0)]), 2, false, available);
            let found = step.max(&other);
            assert_eq!(found.peak_bytes.unwrap() - WORKSPACE_BYTES, peak);
            assert_eq!(found.needed_bytes.unwrap(), found.peak_bytes.unwrap() + RESERVED_BYTES);
            assert_eq!(found.largest_micro_batch, Some(largest));
        }
        let unknown = GpuMemory::new(&state(1 << 30), None, 2, false, available);
        assert_eq!((unknown.max(&step).peak_bytes, unknown.max(&step).largest_micro_batch), (None, Some(12)));
    }

    #[test]
    fn nothing_is_said_of_networks_whose_activations_are_not_counted() {
        let state = StateBytes { weights: 1 << 30, gradients: 1 << 30, optimizer: 1 << 30 };
        for (available, largest) in [(1 << 30, Some(0)), (80 << 30, None)] {
            let memory = GpuMemory::new(&state, None, 8, false, Some(available));
            assert_eq!((memory.needed_bytes, memory.largest_micro_batch), (None, largest));
        }
    }
}
