//! What a backward pass of the transformer has in memory. It follows from the configuration.

use super::config::SD3TransformerConfig;
use super::cost::Tokens;
use crate::GradientCheckpointing;
use crate::activations::{Activations, LayerMemory, list_moments};
use crate::params::Params;

/// What a backward pass takes beside what the forward pass kept, in tensors of [tokens, width]: gradients of
/// activations. Counted for Stable Diffusion 3's transformers.
const TRANSIENT_TENSORS: i64 = 5;

/// Tensors of [tokens, width] that a sequence's layers keep, as inputs of linear layers, norms and products.
mod kept {
    /// The norm's input, its result, and that with scale and shift.
    pub const NORM: i64 = 3;
    /// Queries, keys and values.
    pub const QKV: i64 = 3;
    /// Queries and keys before they are normalised.
    pub const QK_NORM: i64 = 2;
    /// The result of attention.
    pub const ATTENDED: i64 = 1;
    /// The projection's input and result: the gate multiplies it.
    pub const OUT: i64 = 2;
    /// The MLP's hidden states before and after GELU, each of four times the width.
    pub const MLP_HIDDEN: i64 = 8;
    /// The MLP's result: the gate multiplies it.
    pub const MLP_OUT: i64 = 1;
}

/// The moments of a backward pass of one sample.
pub fn count_activations(
    config: &SD3TransformerConfig,
    params: &Params,
    tokens: Tokens,
    checkpointing: GradientCheckpointing,
) -> Vec<Activations> {
    let width = config.width();
    let input = (tokens.image + tokens.text) * width;
    let mut layers: Vec<LayerMemory> = (0..config.num_layers)
        .map(|layer| {
            let elements = kept_by_block(config, tokens, layer) * width;
            let [of_image, of_text] = mlp_hidden_of_block(config, tokens, layer).map(|hidden| hidden * width);
            let (kept, recomputed) = match checkpointing {
                GradientCheckpointing::Off => (elements, 0),
                // Image and text tokens have an MLP each, one after the other.
                GradientCheckpointing::Selective => (elements - of_image - of_text, of_image.max(of_text)),
                // A block that is computed again has its input already.
                GradientCheckpointing::Full => (input, elements - input),
            };
            LayerMemory { kept, recomputed, parameters: 0 }
        })
        .collect();
    for (name, tensor) in params.named_parameters() {
        let block = name.strip_prefix("transformer_blocks.").and_then(|rest| rest.split('.').next());
        if let Some(layer) = block.and_then(|number| layers.get_mut(number.parse::<usize>().ok()?)) {
            layer.parameters += tensor.numel() as i64;
        }
    }
    // What comes after the last block is done when a block is computed again.
    let is_full = checkpointing == GradientCheckpointing::Full;
    let outside = if is_full { 0 } else { kept::NORM * tokens.image * width };
    let parameters = params.parameter_count() as i64;
    list_moments(&layers, outside, TRANSIENT_TENSORS * input, parameters)
}

/// The hidden states of a block's MLPs for image and text tokens, in numbers of one width.
fn mlp_hidden_of_block(config: &SD3TransformerConfig, tokens: Tokens, layer: i64) -> [i64; 2] {
    let is_last = layer + 1 == config.num_layers;
    [tokens.image, if is_last { 0 } else { tokens.text }].map(|tokens| kept::MLP_HIDDEN * tokens)
}

/// What a block keeps, in numbers of one width.
fn kept_by_block(config: &SD3TransformerConfig, tokens: Tokens, layer: i64) -> i64 {
    let qkv = kept::QKV + if config.qk_norm.is_some() { kept::QK_NORM } else { 0 };
    let attention = kept::NORM + qkv + kept::ATTENDED;
    let whole = attention + kept::OUT + kept::NORM + kept::MLP_HIDDEN + kept::MLP_OUT;
    let is_last = layer + 1 == config.num_layers;
    // The attention of image tokens to themselves shares the norm, but not its scale and shift.
    let is_dual = config.dual_attention_layers.contains(&layer);
    let dual = if is_dual { 1 + qkv + kept::ATTENDED + kept::OUT } else { 0 };
    let of_text = if is_last { attention } else { whole };
    tokens.image * (whole + dual) + tokens.text * of_text
}
