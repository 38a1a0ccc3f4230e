//! SDXL's micro-conditioning (Podell et al., 2023): pooled text and image sizes, which are added to the time
//! embedding (diffusers' `addition_embed_type = "text_time"`).

use tch::{Kind, Tensor};

use super::config::{AddedWidths, TIME_IDS, UNetConfig};
use crate::denoiser::Conditions;
use crate::layers::{Linear, timestep_embedding};
use crate::params::Scope;

/// From pooled text and sizes to a vector like the time embedding.
#[derive(Debug)]
pub struct AddedEmbedding {
    linear_1: Linear,
    linear_2: Linear,
    /// Width of the embedding of one number of the time ids.
    size_width: i64,
    flip_sin_to_cos: bool,
    freq_shift: i64,
}

impl AddedEmbedding {
    /// `outputs` is the width of the time embedding.
    pub fn new(scope: Scope, config: &UNetConfig, widths: AddedWidths, outputs: i64) -> Self {
        let inputs = widths.pooled + TIME_IDS * widths.size;
        Self {
            linear_1: Linear::new(scope.child("linear_1"), inputs, outputs),
            linear_2: Linear::new(scope.child("linear_2"), outputs, outputs),
            size_width: widths.size,
            flip_sin_to_cos: config.flip_sin_to_cos,
            freq_shift: config.freq_shift,
        }
    }

    /// The embedding [N, outputs] in this dtype.
    ///
    /// # Panics
    /// If there is no pooled text or there are no time ids, or libtorch fails.
    #[expect(clippy::expect_used, reason = "as tch's operators do; `forward_flops` refuses such samples")]
    pub fn forward(&self, conditions: &Conditions, kind: Kind) -> Tensor {
        let pooled = conditions.pooled.as_ref().expect("this U-Net takes pooled text");
        let time_ids = conditions.time_ids.as_ref().expect("this U-Net takes time ids");
        let (width, shift) = (self.size_width, self.freq_shift);
        let sizes = timestep_embedding(&time_ids.flatten(0, -1), width, self.flip_sin_to_cos, shift);
        let sizes = sizes.reshape([pooled.size()[0], -1]);
        let inputs = Tensor::cat(&[&pooled.to_kind(Kind::Float), &sizes], -1).to_kind(kind);
        self.linear_2.forward(&self.linear_1.forward(&inputs).silu())
    }
}
