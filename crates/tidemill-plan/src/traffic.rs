//! The bytes that each rank sends in a step.

use serde::Serialize;

/// Bytes that each rank sends in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// To reduce gradients.
    pub gradients: u64,
    /// To gather weights.
    pub weights: u64,
}

impl Traffic {
    /// The traffic of `gradients` and `weights` bytes on `ranks` ranks, of which `partitions` share the
    /// state. Gradients are reduced and scattered over these, and the parts are then reduced over the ranks
    /// that have the same part.
    ///
    /// In a ring of N ranks a reduce-scatter or an all-gather of S bytes sends (N - 1) / N x S from
    /// each rank, an all-reduce twice as much (Patarasu and Yuan, 2009), which is the least for any
    /// algorithm. Gloo implements reduce-scatter as an all-reduce and keeps a part of its result,
    /// so it sends twice as much.
    pub fn new(ranks: u64, partitions: u64, gradients: u64, weights: u64) -> Self {
        let once = |bytes: u64, ranks: u64| bytes * (ranks - 1) / ranks;
        let replicas = ranks / partitions;
        Self {
            gradients: once(gradients, partitions) + 2 * once(gradients / partitions, replicas),
            weights: once(weights, partitions),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sharding_sends_gradients_once_and_weights_once() {
        let sharded = Traffic::new(32, 32, 4 * 865_000_000, 2 * 865_000_000);
        assert_eq!(sharded, Traffic { gradients: 3_351_875_000, weights: 1_675_937_500 });
        let whole = Traffic::new(32, 1, 4 * 865_000_000, 2 * 865_000_000);
        assert_eq!(whole, Traffic { gradients: 6_703_750_000, weights: 0 });
        assert_eq!(Traffic::new(1, 1, 4000, 4000), Traffic { gradients: 0, weights: 0 });
        // Four nodes of eight ranks: seven eighths within the node, and twice three quarters of an eighth
        // between nodes.
        let hybrid = Traffic::new(32, 8, 3200, 1600);
        assert_eq!(hybrid, Traffic { gradients: 2800 + 2 * 300, weights: 1400 });
    }
}
