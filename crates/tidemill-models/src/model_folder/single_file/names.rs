//! Names of parameters in a single file, from those of diffusers and transformers. They are those of
//! diffusers' `convert_diffusers_to_original_stable_diffusion.py`. `None` stands for a name that the layout
//! lacks.

/// The number of blocks of a kind, by the names of their tensors.
pub fn count_blocks<'a>(names: impl Iterator<Item = &'a String>, kind: &str) -> usize {
    let index = |name: &'a String| {
        let mut parts = name.split('.').skip_while(|part| *part != kind);
        parts.nth(1)?.parse::<usize>().ok()
    };
    names.filter_map(index).max().map_or(0, |last| last + 1)
}

/// The U-Net's names, which depend on its blocks.
pub struct UNetNames {
    /// ResNet blocks of each block of the first half.
    layers: usize,
    /// Whether each block of the second half has attention.
    has_attention: Vec<bool>,
}

impl UNetNames {
    /// `names` are those of all parameters.
    pub fn new<'a>(names: impl Iterator<Item = &'a String> + Clone) -> Self {
        let blocks = count_blocks(names.clone(), "up_blocks");
        let has = |prefix: String| names.clone().any(|name| name.starts_with(&prefix));
        Self {
            layers: (0..).take_while(|layer| has(format!("down_blocks.0.resnets.{layer}."))).count(),
            has_attention: (0..blocks).map(|block| has(format!("up_blocks.{block}.attentions."))).collect(),
        }
    }

    /// The name in a U-Net with these blocks.
    pub fn to_original(&self, name: &str) -> Option<String> {
        let parts: Vec<&str> = name.split('.').collect();
        let index = |text: &str| text.parse::<usize>().ok();
        // A block has its ResNet blocks and, in the first half, what makes the image smaller.
        let input = |block: &str, layer: &str| Some((self.layers + 1) * index(block)? + index(layer)? + 1);
        let output = |block: &str, layer: &str| Some((self.layers + 1) * index(block)? + index(layer)?);
        Some(match parts.as_slice() {
            ["conv_in", rest] => format!("input_blocks.0.0.{rest}"),
            ["conv_norm_out", rest] => format!("out.0.{rest}"),
            ["conv_out", rest] => format!("out.2.{rest}"),
            ["time_embedding", "linear_1", rest] => format!("time_embed.0.{rest}"),
            ["time_embedding", "linear_2", rest] => format!("time_embed.2.{rest}"),
            ["down_blocks", block, "resnets", layer, rest @ ..] => {
                format!("input_blocks.{}.0.{}", input(block, layer)?, resnet_name(rest)?)
            }
            ["down_blocks", block, "attentions", layer, rest @ ..] => {
                format!("input_blocks.{}.1.{}", input(block, layer)?, rest.join("."))
            }
            ["down_blocks", block, "downsamplers", "0", "conv", rest] => {
                format!("input_blocks.{}.0.op.{rest}", (self.layers + 1) * (index(block)? + 1))
            }
            ["mid_block", "resnets", layer, rest @ ..] => {
                format!("middle_block.{}.{}", 2 * index(layer)?, resnet_name(rest)?)
            }
            ["mid_block", "attentions", "0", rest @ ..] => format!("middle_block.1.{}", rest.join(".")),
            ["up_blocks", block, "resnets", layer, rest @ ..] => {
                format!("output_blocks.{}.0.{}", output(block, layer)?, resnet_name(rest)?)
            }
            ["up_blocks", block, "attentions", layer, rest @ ..] => {
                format!("output_blocks.{}.1.{}", output(block, layer)?, rest.join("."))
            }
            ["up_blocks", block, "upsamplers", "0", rest @ ..] => {
                let block = index(block)?;
                let place = 1 + usize::from(*self.has_attention.get(block)?);
                let last = (self.layers + 1) * block + self.layers;
                format!("output_blocks.{last}.{place}.{}", rest.join("."))
            }
            _ => return None,
        })
    }
}

fn resnet_name(parts: &[&str]) -> Option<String> {
    let (first, rest) = parts.split_first()?;
    let original = match *first {
        "norm1" => "in_layers.0",
        "conv1" => "in_layers.2",
        "time_emb_proj" => "emb_layers.1",
        "norm2" => "out_layers.0",
        "conv2" => "out_layers.3",
        "conv_shortcut" => "skip_connection",
        _ => return None,
    };
    Some(format!("{original}.{}", rest.join(".")))
}

/// The name in a VAE with this number of blocks in each half. The decoder's count from the image.
pub fn vae_name(name: &str, blocks: usize) -> Option<String> {
    let parts: Vec<&str> = name.split('.').collect();
    let from_image = |block: &str| blocks.checked_sub(1 + block.parse::<usize>().ok()?);
    Some(match parts.as_slice() {
        ["encoder", "down_blocks", block, "resnets", layer, rest @ ..] => {
            format!("encoder.down.{block}.block.{layer}.{}", vae_resnet_name(rest))
        }
        ["encoder", "down_blocks", block, "downsamplers", "0", rest @ ..] => {
            format!("encoder.down.{block}.downsample.{}", rest.join("."))
        }
        ["decoder", "up_blocks", block, "resnets", layer, rest @ ..] => {
            format!("decoder.up.{}.block.{layer}.{}", from_image(block)?, vae_resnet_name(rest))
        }
        ["decoder", "up_blocks", block, "upsamplers", "0", rest @ ..] => {
            format!("decoder.up.{}.upsample.{}", from_image(block)?, rest.join("."))
        }
        [half, "mid_block", "resnets", layer, rest @ ..] => {
            format!("{half}.mid.block_{}.{}", layer.parse::<usize>().ok()? + 1, vae_resnet_name(rest))
        }
        [half, "mid_block", "attentions", "0", rest @ ..] => {
            let (parameter, layer) = rest.split_last()?;
            let original = match layer {
                ["group_norm"] => "norm",
                // VAEs that were published before diffusers 0.18 have the second names.
                ["to_q"] | ["query"] => "q",
                ["to_k"] | ["key"] => "k",
                ["to_v"] | ["value"] => "v",
                ["to_out", "0"] | ["proj_attn"] => "proj_out",
                _ => return None,
            };
            format!("{half}.mid.attn_1.{original}.{parameter}")
        }
        [half, "conv_norm_out", rest] => format!("{half}.norm_out.{rest}"),
        ["encoder" | "decoder", "conv_in" | "conv_out", _] | ["quant_conv" | "post_quant_conv", _] => {
            name.to_owned()
        }
        _ => return None,
    })
}

fn vae_resnet_name(parts: &[&str]) -> String {
    parts.join(".").replace("conv_shortcut", "nin_shortcut")
}

/// The name in OpenCLIP's text encoder, which has one matrix for queries, keys and values.
pub fn open_clip_name(name: &str) -> Option<String> {
    let parts: Vec<&str> = name.split('.').collect();
    Some(match parts.as_slice() {
        ["embeddings", "token_embedding", "weight"] => "token_embedding.weight".into(),
        ["embeddings", "position_embedding", "weight"] => "positional_embedding".into(),
        ["final_layer_norm", rest] => format!("ln_final.{rest}"),
        ["encoder", "layers", layer, rest @ ..] => {
            let rest = match rest {
                ["self_attn", rest @ ..] => format!("attn.{}", rest.join(".")),
                ["layer_norm1", rest] => format!("ln_1.{rest}"),
                ["layer_norm2", rest] => format!("ln_2.{rest}"),
                ["mlp", "fc1", rest] => format!("mlp.c_fc.{rest}"),
                ["mlp", "fc2", rest] => format!("mlp.c_proj.{rest}"),
                _ => return None,
            };
            format!("transformer.resblocks.{layer}.{rest}")
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_stable_diffusion() {
        let names = UNetNames { layers: 2, has_attention: vec![false, true, true, true] };
        for (name, expected) in [
            ("conv_in.weight", "input_blocks.0.0.weight"),
            ("down_blocks.0.resnets.1.norm1.bias", "input_blocks.2.0.in_layers.0.bias"),
            ("down_blocks.1.downsamplers.0.conv.weight", "input_blocks.6.0.op.weight"),
            ("down_blocks.2.attentions.0.proj_in.weight", "input_blocks.7.1.proj_in.weight"),
            ("mid_block.resnets.1.time_emb_proj.bias", "middle_block.2.emb_layers.1.bias"),
            ("up_blocks.0.upsamplers.0.conv.bias", "output_blocks.2.1.conv.bias"),
            ("up_blocks.1.upsamplers.0.conv.bias", "output_blocks.5.2.conv.bias"),
            ("up_blocks.3.resnets.2.conv_shortcut.weight", "output_blocks.11.0.skip_connection.weight"),
        ] {
            assert_eq!(names.to_original(name).as_deref(), Some(expected), "{name}");
        }
        assert_eq!(names.to_original("add_embedding.linear_1.weight"), None, "of SDXL");
        for (name, expected) in [
            ("decoder.up_blocks.0.resnets.2.conv1.weight", "decoder.up.3.block.2.conv1.weight"),
            ("encoder.mid_block.attentions.0.to_out.0.weight", "encoder.mid.attn_1.proj_out.weight"),
            (
                "encoder.down_blocks.1.resnets.0.conv_shortcut.bias",
                "encoder.down.1.block.0.nin_shortcut.bias",
            ),
            ("encoder.mid_block.attentions.0.query.bias", "encoder.mid.attn_1.q.bias"),
            ("quant_conv.weight", "quant_conv.weight"),
        ] {
            assert_eq!(vae_name(name, 4).as_deref(), Some(expected), "{name}");
        }
        let layer = "encoder.layers.3.self_attn.in_proj_weight";
        assert_eq!(open_clip_name(layer).as_deref(), Some("transformer.resblocks.3.attn.in_proj_weight"));
    }
}
