//! The floating-point operations of a forward pass of the transformer. They follow from the names and shapes of the
//! weights.

use super::config::SD3TransformerConfig;
use crate::params::Params;

/// Tokens of one sample.
#[derive(Clone, Copy, Debug)]
pub struct Tokens {
    pub image: i64,
    pub text: i64,
}

/// Floating-point operations of one sample's forward pass, counted as by PyTorch's `FlopCounterMode`: two for each
/// multiplication and addition in linear layers, the patches' convolution and attention's two products. A backward
/// pass has twice as many.
pub fn count_flops(config: &SD3TransformerConfig, params: &Params, tokens: Tokens) -> u64 {
    let weights = params.named_parameters().into_iter().filter(|(_, weight)| weight.dim() > 1);
    let flops = weights.map(|(name, weight)| {
        let keys = match () {
            () if name.ends_with("attn.to_q.weight") => tokens.image + tokens.text,
            () if name.ends_with("attn2.to_q.weight") => tokens.image,
            () => 0,
        };
        2 * rows_of(&name, tokens) * weight.numel() as i64 + 4 * keys * keys * config.width()
    });
    flops.sum::<i64>().unsigned_abs()
}

/// The rows that a layer works on.
fn rows_of(name: &str, tokens: Tokens) -> i64 {
    let is_of_time = name.starts_with("time_text_embed") || name.contains("norm");
    let is_of_text = [".add_", "to_add_out", "ff_context"].iter().any(|part| name.contains(part))
        || name.starts_with("context_embedder");
    match () {
        () if is_of_time => 1,
        () if is_of_text => tokens.text,
        () => tokens.image,
    }
}
