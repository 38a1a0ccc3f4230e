//! What a backward pass of the transformer has in memory. It follows from the configuration.

use super::config::SD3TransformerConfig;
use super::cost::Tokens;
use crate::denoiser::Activations;

/// What a backward pass takes beside what the forward pass kept, in tensors of [tokens, width]: gradients of
/// activations. Counted for Stable Diffusion 3's transformers.
const TRANSIENT_TENSORS: i64 = 9;

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
    /// The MLP's hidden states before and after GELU, each of four times the width, and its result.
    pub const MLP: i64 = 9;
}

/// The elements of one sample that are in memory during a backward pass. Each takes the bytes of the network's
/// arithmetic, 2 in bf16.
pub fn count_activations(
    config: &SD3TransformerConfig,
    tokens: Tokens,
    use_gradient_checkpointing: bool,
) -> Activations {
    let width = config.width();
    let layer = |layer: i64| kept_by_block(config, tokens, layer) * width;
    let transient = TRANSIENT_TENSORS * (tokens.image + tokens.text) * width;
    let outside = kept::NORM * tokens.image * width;
    let inputs = (tokens.image + tokens.text) * width;
    let kept = if use_gradient_checkpointing {
        // A block is computed again when its turn comes, the last one first. What is outside is done by then.
        let when_computed = |i: i64| (i + 1) * inputs + layer(i);
        (0..config.num_layers).map(when_computed).max().unwrap_or(0)
    } else {
        (0..config.num_layers).map(layer).sum::<i64>() + outside
    };
    let elements = |count: i64| (count + transient).unsigned_abs();
    Activations { at_start: elements(kept), at_end: elements(layer(0)) }
}

/// What a block keeps, in numbers of one width.
fn kept_by_block(config: &SD3TransformerConfig, tokens: Tokens, layer: i64) -> i64 {
    let qkv = kept::QKV + if config.qk_norm.is_some() { kept::QK_NORM } else { 0 };
    let attention = kept::NORM + qkv + kept::ATTENDED;
    let whole = attention + kept::OUT + kept::NORM + kept::MLP;
    let is_last = layer + 1 == config.num_layers;
    // The attention of image tokens to themselves shares the norm, but not its scale and shift.
    let is_dual = config.dual_attention_layers.contains(&layer);
    let dual = if is_dual { 1 + qkv + kept::ATTENDED + kept::OUT } else { 0 };
    let of_text = if is_last { attention } else { whole };
    tokens.image * (whole + dual) + tokens.text * of_text
}
