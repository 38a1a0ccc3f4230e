//! A block of the transformer. Names follow diffusers' `JointTransformerBlock`.

use std::sync::Arc;

use tch::Tensor;
use tidemill_torch::gradient_checkpoint;

use super::attention::{ImageAttention, JointAttention};
use super::config::SD3TransformerConfig;
use super::modulation::{Modulation, modulate, normalize, scale_and_shift};
use crate::GradientCheckpointing;
use crate::layers::{FeedForward, FeedForwardActivation, unwrap_or_panic};
use crate::params::Scope;

/// Vectors of a sequence's modulation: shift, scale and gate of attention, and of the MLP.
const PARTS: i64 = 6;
/// Shift, scale and gate of the attention of image tokens to themselves.
const DUAL_PARTS: i64 = 3;

/// What the text tokens of a block need.
#[derive(Debug)]
enum TextPath {
    /// Text tokens go on to the next block.
    Continues { norm: Modulation, ff: Arc<FeedForward> },
    /// In the last block image tokens attend to them, and they end.
    Ends { norm: Modulation },
}

/// Image and text tokens attend to all of both; then each has its MLP.
#[derive(Debug)]
pub struct JointTransformerBlock {
    norm1: Modulation,
    text: TextPath,
    attn: JointAttention,
    attn2: Option<ImageAttention>,
    ff: Arc<FeedForward>,
}

impl JointTransformerBlock {
    #[expect(clippy::arc_with_non_send_sync, reason = "a backward pass uses it while its caller waits")]
    pub fn new(scope: Scope, config: &SD3TransformerConfig, layer: i64) -> Arc<Self> {
        let (width, is_last) = (config.width(), layer + 1 == config.num_layers);
        let is_dual = config.dual_attention_layers.contains(&layer);
        let modulation = |name: &str, parts| Modulation::new(scope.child(name), width, parts);
        let feed_forward =
            |name: &str| FeedForward::new(scope.child(name), width, FeedForwardActivation::GeluTanh);
        Arc::new(Self {
            norm1: modulation("norm1", if is_dual { PARTS + DUAL_PARTS } else { PARTS }),
            text: match is_last {
                true => TextPath::Ends { norm: modulation("norm1_context", 2) },
                false => TextPath::Continues {
                    norm: modulation("norm1_context", PARTS),
                    ff: feed_forward("ff_context"),
                },
            },
            attn: JointAttention::new(scope.child("attn"), config, !is_last),
            attn2: is_dual.then(|| ImageAttention::new(scope.child("attn2"), config)),
            ff: feed_forward("ff"),
        })
    }

    /// Image tokens [N, L, width] and text tokens [N, M, width] to those after the block. `time` is the SiLU of the
    /// embedding of timestep and pooled text [N, width]. The last block returns no text. With `checkpoint_mlps` the
    /// backward pass computes the hidden states of MLPs again.
    fn forward(
        &self,
        image: &Tensor,
        text: &Tensor,
        time: &Tensor,
        checkpoint_mlps: bool,
    ) -> (Tensor, Option<Tensor>) {
        let modulation = self.norm1.forward(time);
        let [shift, scale, gate, shift_mlp, scale_mlp, gate_mlp] = array(&modulation);
        let image_norm = normalize(image);
        let h = scale_and_shift(&image_norm, shift, scale);
        let (text_norm, text_modulation) = match &self.text {
            TextPath::Ends { norm } => {
                let modulation = norm.forward(time);
                let [scale, shift] = array(&modulation);
                (modulate(text, shift, scale), None)
            }
            TextPath::Continues { norm, ff } => {
                let modulation = norm.forward(time);
                let [shift, scale, ..] = array::<6>(&modulation);
                (modulate(text, shift, scale), Some((modulation, ff)))
            }
        };
        let (attended, text_attended) = self.attn.forward(&h, &text_norm);
        let mut x = image.addcmul(gate, &attended);
        if let (Some(attn2), [.., shift, scale, gate]) = (&self.attn2, &modulation[..]) {
            x = x.addcmul(gate, &attn2.forward(&scale_and_shift(&image_norm, shift, scale)));
        }
        let x = x.addcmul(gate_mlp, &self.ff.forward(&modulate(&x, shift_mlp, scale_mlp), checkpoint_mlps));
        let text = text_modulation.zip(text_attended).map(|((modulation, ff), attended)| {
            let [_, _, gate, shift_mlp, scale_mlp, gate_mlp] = array(&modulation);
            let text = text.addcmul(gate, &attended);
            text.addcmul(gate_mlp, &ff.forward(&modulate(&text, shift_mlp, scale_mlp), checkpoint_mlps))
        });
        (x, text)
    }

    /// [`Self::forward`]. With full gradient checkpointing only the block's inputs are kept, and the backward pass
    /// computes it again.
    pub fn run(
        self: &Arc<Self>,
        image: &Tensor,
        text: &Tensor,
        time: &Tensor,
        checkpointing: GradientCheckpointing,
    ) -> (Tensor, Option<Tensor>) {
        if checkpointing != GradientCheckpointing::Full {
            return self.forward(image, text, time, checkpointing == GradientCheckpointing::Selective);
        }
        let output = gradient_checkpoint(self, &[image, text, time], |block, inputs, _| match inputs {
            [image, text, time] => match block.forward(image, text, time, false) {
                (image, Some(text)) => Tensor::cat(&[image, text], 1),
                (image, None) => image,
            },
            _ => unreachable!("a block has three inputs"),
        });
        let (output, length) = (unwrap_or_panic(output), image.size()[1]);
        let words = output.size()[1] - length;
        (output.narrow(1, 0, length), (words > 0).then(|| output.narrow(1, length, words)))
    }
}

/// The first vectors of a modulation.
fn array<const N: usize>(vectors: &[Tensor]) -> [&Tensor; N] {
    std::array::from_fn(|i| &vectors[i])
}
