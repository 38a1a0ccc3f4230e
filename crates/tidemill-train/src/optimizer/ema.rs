//! The exponential moving average (EMA) of the master weights. AdamW's kernel updates the average
//! of trained parameters along with their weights; this file starts it, and continues it for frozen
//! parameters. `Optimizer::with_ema_weights` in `adamw.rs` puts it into the network. The decay of
//! each step is in `config/ema.rs`.

use tch::Tensor;
use tidemill_torch::AdamWScalars;

use crate::parallel::bucket_layout::BucketLayout;

/// The averaged weights, once averaging has started: this rank's partition of every bucket, f32.
#[derive(Debug, Default)]
pub struct EmaWeights(Option<Vec<Tensor>>);

impl EmaWeights {
    /// The averages, by bucket; `None` before averaging starts.
    pub fn partitions(&self) -> Option<&[Tensor]> {
        self.0.as_deref()
    }

    /// Starts averaging with a copy of the weights.
    pub fn start(&mut self, master: &[Tensor]) {
        self.0 = Some(master.iter().map(Tensor::copy).collect());
    }

    /// Stops averaging.
    pub fn clear(&mut self) {
        self.0 = None;
    }

    /// Updates the averages of frozen buckets. These have no gradients, so AdamW's kernel leaves
    /// them out, but their averages may differ from their weights if they were trained before.
    pub fn update_frozen(&self, layout: &BucketLayout, master: &[Tensor], scalars: AdamWScalars) {
        let buckets = self.0.iter().flatten().zip(master).zip(layout.buckets());
        for ((ema, master), _) in buckets.filter(|(_, bucket)| bucket.treatment.is_frozen) {
            let _ = ema.shallow_clone().lerp_tensor_(master, &scalars.effective_ema_rate());
        }
    }
}
