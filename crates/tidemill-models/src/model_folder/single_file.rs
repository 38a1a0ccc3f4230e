//! A model folder as one file in the layout of the first Stable Diffusion releases, which other programs
//! share. The names are those of diffusers' `convert_diffusers_to_original_stable_diffusion.py`.

use std::collections::BTreeMap;
use std::path::Path;

use tch::Tensor;
use tidemill_torch::guard;

use super::config_file;
use super::folder::ModelFolder;
use super::safetensors_file::SafetensorsFile;
use super::weight_files::weight_files;
use super::weights::save_weights;
use crate::error::Error;

const UNET: &str = "model.diffusion_model.";
const VAE: &str = "first_stage_model.";
const CLIP: &str = "cond_stage_model.transformer.text_model.";
const OPEN_CLIP: &str = "cond_stage_model.model.";

impl ModelFolder {
    /// Writes all weights to the file `path`: U-Net, VAE and text encoder, in their own dtypes. The
    /// text encoder of Stable Diffusion 2, which is OpenCLIP's, is known by its activation.
    ///
    /// # Errors
    /// If weights cannot be read, have names that the layout lacks, or the file cannot be written.
    pub fn write_single_file(&self, path: &Path) -> Result<(), Error> {
        let unet = read_tensors(&self.unet())?;
        let unet_names = UNetNames::new(&unet);
        let mut tensors = rename(&unet, UNET, |name| unet_names.to_original(name), &self.unet())?;
        let vae = read_tensors(&self.vae())?;
        let blocks = count_blocks(vae.keys(), "down_blocks");
        let vae: BTreeMap<String, Tensor> =
            vae.into_iter().map(to_convolution).collect::<Result<_, Error>>()?;
        tensors.extend(rename(&vae, VAE, |name| vae_name(name, blocks), &self.vae())?);
        let text_folder = self.text_encoder();
        let text = read_tensors(&text_folder)?;
        // transformers 5 omits this prefix.
        let text = text
            .into_iter()
            .map(|(name, tensor)| (name.strip_prefix("text_model.").unwrap_or(&name).to_owned(), tensor));
        let text: BTreeMap<String, Tensor> =
            text.filter(|(name, _)| name != "embeddings.position_ids").collect();
        let config = config_file::read_object(&text_folder.join("config.json"))?;
        tensors.extend(match config.get("hidden_act").and_then(|act| act.as_str()) {
            Some("gelu") => rename(&join_projections(text)?, OPEN_CLIP, open_clip_name, &text_folder)?,
            _ => rename(&text, CLIP, |name| Some(name.to_owned()), &text_folder)?,
        });
        save_weights(&tensors, path)
    }
}

fn read_tensors(folder: &Path) -> Result<BTreeMap<String, Tensor>, Error> {
    let mut tensors = BTreeMap::new();
    for path in weight_files(folder)? {
        let mut file = SafetensorsFile::open(&path)?;
        for name in file.names() {
            let tensor = file.read(&name)?;
            tensors.insert(name, tensor);
        }
    }
    Ok(tensors)
}

/// The tensors under their new names.
fn rename(
    tensors: &BTreeMap<String, Tensor>,
    prefix: &str,
    new_name: impl Fn(&str) -> Option<String>,
    folder: &Path,
) -> Result<Vec<(String, Tensor)>, Error> {
    let renamed = |(name, tensor): (&String, &Tensor)| {
        let message = || format!("{name} has no place in a single file of Stable Diffusion 1 or 2");
        let new = new_name(name).ok_or_else(|| Error::Weights { path: folder.into(), message: message() })?;
        Ok((format!("{prefix}{new}"), tensor.shallow_clone()))
    };
    tensors.iter().map(renamed).collect()
}

/// The number of blocks of a kind, by the names of their tensors.
fn count_blocks<'a>(names: impl Iterator<Item = &'a String>, kind: &str) -> usize {
    let index = |name: &'a String| {
        let mut parts = name.split('.').skip_while(|part| *part != kind);
        parts.nth(1)?.parse::<usize>().ok()
    };
    names.filter_map(index).max().map_or(0, |last| last + 1)
}

/// The U-Net's names, which depend on its blocks.
struct UNetNames {
    /// ResNet blocks of each block of the first half.
    layers: usize,
    /// Whether each block of the second half has attention.
    has_attention: Vec<bool>,
}

impl UNetNames {
    fn new(tensors: &BTreeMap<String, Tensor>) -> Self {
        let blocks = count_blocks(tensors.keys(), "up_blocks");
        let has = |prefix: String| tensors.keys().any(|name| name.starts_with(&prefix));
        Self {
            layers: (0..).take_while(|layer| has(format!("down_blocks.0.resnets.{layer}."))).count(),
            has_attention: (0..blocks).map(|block| has(format!("up_blocks.{block}.attentions."))).collect(),
        }
    }

    /// None if the layout has no such name.
    fn to_original(&self, name: &str) -> Option<String> {
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
fn vae_name(name: &str, blocks: usize) -> Option<String> {
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

/// The VAE's attention is made of 1x1 convolutions there.
fn to_convolution((name, tensor): (String, Tensor)) -> Result<(String, Tensor), Error> {
    let is_linear = name.contains(".attentions.") && name.ends_with(".weight") && tensor.dim() == 2;
    let tensor = if is_linear { guard(|| tensor.unsqueeze(-1).unsqueeze(-1))? } else { tensor };
    Ok((name, tensor))
}

/// OpenCLIP has one matrix for queries, keys and values.
fn join_projections(mut tensors: BTreeMap<String, Tensor>) -> Result<BTreeMap<String, Tensor>, Error> {
    let queries: Vec<String> = tensors.keys().filter(|name| name.contains(".q_proj.")).cloned().collect();
    for query in queries {
        let parts = ["q", "k", "v"].map(|part| query.replace(".q_proj.", &format!(".{part}_proj.")));
        let found: Vec<Tensor> = parts.iter().filter_map(|name| tensors.remove(name)).collect();
        tensors.insert(query.replace(".q_proj.", ".in_proj_"), guard(|| Tensor::cat(&found, 0))?);
    }
    Ok(tensors)
}

fn open_clip_name(name: &str) -> Option<String> {
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
