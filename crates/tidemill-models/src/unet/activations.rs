//! What a backward pass of the U-Net has in memory. It follows from the names and shapes of the weights.

use std::collections::BTreeMap;

use super::config::UNetConfig;
use super::cost::{is_of_text, is_of_time, level_of, matrices, pixels_per_level};
use crate::GradientCheckpointing;
use crate::activations::{Activations, LayerMemory, list_moments};
use crate::params::Params;

/// What a backward pass takes beside what the forward pass kept, in tensors of the outermost level: gradients of
/// activations, and operands that are concatenated or converted. Counted for Stable Diffusion 2's U-Net.
const TRANSIENT_TENSORS: i64 = 9;

/// The moments of a backward pass of one sample, for latents of this height and width and this number of text tokens.
pub fn count_activations(
    config: &UNetConfig,
    params: &Params,
    size: (i64, i64),
    tokens: i64,
    checkpointing: GradientCheckpointing,
) -> Vec<Activations> {
    let kept = kept_by_part(config, params, size, tokens);
    let mut parameters: BTreeMap<String, i64> = BTreeMap::new();
    for (name, tensor) in params.named_parameters() {
        *parameters.entry(part_of(&name)).or_insert(0) += tensor.numel() as i64;
    }
    let pixels = pixels_per_level(config, size);
    let part = |name: &str| kept.get(name).copied().unwrap_or_default();
    let layers: Vec<LayerMemory> = layers_in_order(config, &pixels)
        .into_iter()
        .map(|(name, input)| {
            let Kept { elements, mlp_hidden, mlp_hidden_at_once } = part(&name);
            let (kept, recomputed) = match checkpointing {
                GradientCheckpointing::Off => (elements, 0),
                GradientCheckpointing::Selective => (elements - mlp_hidden, mlp_hidden_at_once),
                GradientCheckpointing::Full => (input, elements),
            };
            LayerMemory { kept, recomputed, parameters: parameters.get(&name).copied().unwrap_or(0) }
        })
        .collect();
    let transient = TRANSIENT_TENSORS * pixels[0] * config.block_out_channels[0];
    let all = parameters.values().sum();
    list_moments(&layers, part("").elements, transient, all)
}

/// Elements that a layer keeps.
#[derive(Clone, Copy, Debug, Default)]
struct Kept {
    elements: i64,
    /// Of these, the hidden states of all MLPs.
    mlp_hidden: i64,
    /// The hidden states of one MLP: a backward pass computes those of one at a time again.
    mlp_hidden_at_once: i64,
}

/// What the forward pass keeps, by the layer to which it belongs; "" for what is in none. Layers are the
/// residual blocks, each with its transformer. Kept are the inputs of convolutions, linear layers and norms, and
/// what attention and GEGLU need.
fn kept_by_part(
    config: &UNetConfig,
    params: &Params,
    size: (i64, i64),
    tokens: i64,
) -> BTreeMap<String, Kept> {
    let level_pixels = pixels_per_level(config, size);
    let pixels_of = |name: &str| level_pixels[level_of(name, level_pixels.len())];
    let mut parts: BTreeMap<String, Kept> = BTreeMap::new();
    for (name, shape) in matrices(params) {
        let (pixels, outputs, inputs) = (pixels_of(&name), shape[0], shape[1]);
        let elements = match () {
            () if is_of_time(&name) => 0,
            // Keys and values of the text; all layers share their input.
            () if is_of_text(&name) => tokens * outputs,
            // Queries, keys and values share their input.
            () if name.contains("attn1.to_k") || name.contains("attn1.to_v") => pixels * outputs,
            () if name.contains(".to_q") => pixels * (inputs + outputs),
            () if name.contains("ff.net.0.proj") => pixels * (inputs + outputs),
            // Its input is that of the first norm.
            () if name.contains("conv_shortcut") => 0,
            // Its input has twice the side.
            () if name.contains("downsamplers") => 4 * pixels * inputs,
            () => pixels * inputs,
        };
        let hidden = match () {
            () if name.contains("ff.net.0.proj") => pixels * outputs,
            () if name.contains("ff.net.2") => pixels * inputs,
            () => 0,
        };
        let kept = parts.entry(part_of(&name)).or_default();
        kept.elements += elements;
        kept.mlp_hidden += hidden;
        // All blocks of a layer have the same width.
        kept.mlp_hidden_at_once += if name.contains("transformer_blocks.0.") { hidden } else { 0 };
    }
    let widths: BTreeMap<String, i64> =
        params.named_parameters().into_iter().map(|(name, tensor)| (name, tensor.size()[0])).collect();
    for name in params.norm_parameter_names().into_iter().filter(|name| name.ends_with(".weight")) {
        let elements = pixels_of(&name) * widths.get(&name).copied().unwrap_or(0);
        parts.entry(part_of(&name)).or_default().elements += elements;
    }
    parts
}

/// The layer of a weight, as "down_blocks.0.1"; "" if it is in none.
fn part_of(name: &str) -> String {
    let parts: Vec<&str> = name.split('.').collect();
    match parts[..] {
        ["mid_block", "resnets" | "attentions", layer, ..] => format!("mid_block.{layer}"),
        [path, block, "resnets" | "attentions", layer, ..] => format!("{path}.{block}.{layer}"),
        _ => String::new(),
    }
}

/// All layers in the order of the forward pass, with the elements of their inputs. The skip connections, which the
/// upward path takes as well, are inputs on the downward path already.
fn layers_in_order(config: &UNetConfig, pixels: &[i64]) -> Vec<(String, i64)> {
    let (channels, layers) = (&config.block_out_channels, config.layers_per_block);
    let innermost = channels.len() - 1;
    let on_level = |level: usize, layer: i64, first: usize| {
        pixels[level] * if layer == 0 { channels[first] } else { channels[level] }
    };
    let down = (0..=innermost).flat_map(|level| {
        (0..layers).map(move |layer| {
            (format!("down_blocks.{level}.{layer}"), on_level(level, layer, level.saturating_sub(1)))
        })
    });
    let middle = (0..2).map(|layer| (format!("mid_block.{layer}"), pixels[innermost] * channels[innermost]));
    let up = (0..=innermost).flat_map(|block| {
        let level = innermost - block;
        (0..=layers).map(move |layer| {
            (format!("up_blocks.{block}.{layer}"), on_level(level, layer, (level + 1).min(innermost)))
        })
    });
    down.chain(middle).chain(up).collect()
}
