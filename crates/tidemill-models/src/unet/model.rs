//! The denoiser of Stable Diffusion 1.x, 2.x and XL (diffusers' UNet2DConditionModel).

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use tch::{Device, Kind, Tensor};
use tidemill_torch::{prefers_channels_last, to_preferred_memory_format};

use super::activations::count_activations;
use super::added_embedding::AddedEmbedding;
use super::blocks::{BlockConfig, DownBlock, MidBlock, PassInputs, UpBlock, UpChannels};
use super::config::{AddedWidths, Level, UNetConfig};
use super::cost::count_flops;
use crate::denoiser::{Conditions, Denoiser, SampleShape, TrainableDenoiser};
use crate::error::Error;
use crate::layers::{
    Conv2d, GroupNorm, Linear, ResnetConfig, TransformerConfig, timestep_embedding, unwrap_or_panic,
};
use crate::model_folder::weight_files::DIFFUSERS_FILE;
use crate::model_folder::weights;
use crate::params::{ParamInit, Params};
use crate::{Activations, GradientCheckpointing, ShardUnits};

/// Stable Diffusion's U-Net.
#[derive(Debug)]
pub struct UNet2DConditionModel {
    config: UNetConfig,
    params: Params,
    conv_in: Conv2d,
    time_linear_1: Linear,
    time_linear_2: Linear,
    added_embedding: Option<AddedEmbedding>,
    down_blocks: Vec<DownBlock>,
    mid_block: Arc<MidBlock>,
    up_blocks: Vec<UpBlock>,
    conv_norm_out: GroupNorm,
    conv_out: Conv2d,
    checkpointing: GradientCheckpointing,
}

impl UNet2DConditionModel {
    /// A U-Net on `device` in f32.
    ///
    /// # Errors
    /// If the configuration is inconsistent, or memory does not suffice.
    pub fn new(config: UNetConfig, device: Device, init: ParamInit) -> Result<Self, Error> {
        let path = Path::new("unet/config.json");
        let (levels, added) = (config.levels(path)?, config.added_widths(path)?);
        Ok(tidemill_torch::guard(|| Self::build(config, &levels, added, device, init))?)
    }

    /// Opens a `unet/` folder in f32.
    ///
    /// # Errors
    /// If the configuration is not supported or the weights do not fit it.
    pub fn load(dir: &Path, device: Device) -> Result<Self, Error> {
        let config = UNetConfig::read(&dir.join("config.json"))?;
        let model = Self::new(config, device, ParamInit::Empty)?;
        weights::load_weights(&model.params, dir)?;
        Ok(model)
    }

    /// Writes a `unet/` folder that diffusers' `UNet2DConditionModel.from_pretrained` opens.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn save(&self, dir: &Path) -> Result<(), Error> {
        self.config.write(&dir.join("config.json"))?;
        weights::save_weights(&self.params.named_parameters(), &dir.join(DIFFUSERS_FILE))
    }

    fn build(
        config: UNetConfig,
        levels: &[Level],
        added: Option<AddedWidths>,
        device: Device,
        init: ParamInit,
    ) -> Self {
        let params = Params::new(device, init);
        let scope = params.root();
        let first = levels[0].channels;
        let innermost = levels[levels.len() - 1];
        let time_width = first * 4;
        let resnet = ResnetConfig {
            groups: config.norm_num_groups,
            eps: config.norm_eps,
            time_embedding: Some(time_width),
        };
        let transformer = |level: &Level| TransformerConfig {
            groups: config.norm_num_groups,
            heads: level.heads,
            context_width: config.cross_attention_dim,
            layers: level.transformer_layers,
            use_linear_projection: config.use_linear_projection,
        };
        let down = |i: usize| {
            let (level, inputs) = (&levels[i], levels[i.saturating_sub(1)].channels);
            let block = BlockConfig {
                resnet,
                transformer: level.has_attention_down.then(|| transformer(level)),
                layers: config.layers_per_block,
            };
            let downsample = (i + 1 < levels.len()).then_some(config.downsample_padding);
            DownBlock::new(scope.child("down_blocks").child(i), inputs, level.channels, block, downsample)
        };
        let up = |i: usize| {
            let index = levels.len() - 1 - i;
            let level = &levels[index];
            let channels = UpChannels {
                below: levels[(index + 1).min(levels.len() - 1)].channels,
                outputs: level.channels,
                last_skip: levels[index.saturating_sub(1)].channels,
            };
            let block = BlockConfig {
                resnet,
                transformer: level.has_attention_up.then(|| transformer(level)),
                layers: config.layers_per_block + 1,
            };
            UpBlock::new(scope.child("up_blocks").child(i), channels, block, index > 0)
        };
        let time = scope.child("time_embedding");
        Self {
            conv_in: Conv2d::new_3x3(scope.child("conv_in"), config.in_channels, first),
            time_linear_1: Linear::new(time.child("linear_1"), first, time_width),
            time_linear_2: Linear::new(time.child("linear_2"), time_width, time_width),
            added_embedding: added
                .map(|widths| AddedEmbedding::new(scope.child("add_embedding"), &config, widths, time_width)),
            down_blocks: (0..levels.len()).map(down).collect(),
            mid_block: MidBlock::new(
                scope.child("mid_block"),
                innermost.channels,
                resnet,
                transformer(&innermost),
            ),
            up_blocks: (0..levels.len()).map(up).collect(),
            conv_norm_out: GroupNorm::new(
                scope.child("conv_norm_out"),
                config.norm_num_groups,
                first,
                config.norm_eps,
            ),
            conv_out: Conv2d::new_3x3(scope.child("conv_out"), first, config.out_channels),
            config,
            params,
            checkpointing: GradientCheckpointing::Off,
        }
    }

    /// The configuration.
    pub fn config(&self) -> &UNetConfig {
        &self.config
    }

    /// The parameters.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// Refuses samples without the conditions that are added to the time embedding.
    fn check_added(&self, shape: SampleShape) -> Result<(), Error> {
        let Some(AddedWidths { pooled, .. }) = self.config.added_widths(Path::new("unet/config.json"))?
        else {
            return Ok(());
        };
        let problem = match shape.pooled {
            None => format!(
                "this U-Net (SDXL's form) takes a pooled text of {pooled} numbers, and there is none: the model folder needs \
                 a text_encoder_2/ with a projection"
            ),
            Some(found) if found != pooled => {
                format!("the pooled text has {found} numbers, but this U-Net takes {pooled}")
            }
            Some(_) if !shape.has_time_ids => {
                "this U-Net (SDXL's form) takes the sizes of image and crop, and there are none".into()
            }
            Some(_) => return Ok(()),
        };
        Err(Error::Denoiser(problem))
    }

    fn embed_time(&self, timesteps: &Tensor, kind: Kind) -> Tensor {
        let width = self.config.block_out_channels[0];
        let embedding =
            timestep_embedding(timesteps, width, self.config.flip_sin_to_cos, self.config.freq_shift);
        self.time_linear_2.forward(&self.time_linear_1.forward(&embedding.to_kind(kind)).silu())
    }
}

impl Denoiser for UNet2DConditionModel {
    fn denoise(&self, sample: &Tensor, timesteps: &Tensor, conditions: &Conditions) -> Tensor {
        let before_module = |name: std::fmt::Arguments| self.params.run_pre_forward_hook(name);
        before_module(format_args!("time_embedding"));
        let mut time = self.embed_time(timesteps, sample.kind());
        if let Some(added) = &self.added_embedding {
            before_module(format_args!("add_embedding"));
            time += added.forward(conditions, sample.kind());
        }
        // Every residual block begins its time projection with the same SiLU, so it is computed
        // once for all.
        let time = time.silu();
        let pass = PassInputs {
            time: &time,
            text: &conditions.text,
            checkpointing: self.checkpointing,
            params: &self.params,
            next_unit: &Cell::new(0),
        };
        before_module(format_args!("conv_in"));
        let mut h = self.conv_in.forward(&unwrap_or_panic(to_preferred_memory_format(sample)));
        let mut skips = vec![h.shallow_clone()];
        for (i, block) in self.down_blocks.iter().enumerate() {
            before_module(format_args!("down_blocks.{i}"));
            h = block.forward(h, pass, &mut skips);
        }
        before_module(format_args!("mid_block"));
        h = self.mid_block.forward(&h, pass);
        for (i, block) in self.up_blocks.iter().enumerate() {
            before_module(format_args!("up_blocks.{i}"));
            h = block.forward(h, pass, &mut skips);
        }
        before_module(format_args!("conv_norm_out"));
        before_module(format_args!("conv_out"));
        self.conv_out.forward(&self.conv_norm_out.forward_silu(&h))
    }
}

impl TrainableDenoiser for UNet2DConditionModel {
    fn params(&self) -> &Params {
        &self.params
    }

    fn prefers_channels_last(&self, kind: Kind) -> bool {
        prefers_channels_last(self.params.device(), kind)
    }

    fn activations(&self, shape: SampleShape) -> Option<Vec<Activations>> {
        let SampleShape { latents: [_, height, width], text: [tokens, _], .. } = shape;
        let size = (height, width);
        Some(count_activations(&self.config, &self.params, size, tokens, self.checkpointing))
    }

    fn shard_units(&self) -> ShardUnits {
        let levels = |name: &'static str, layers: i64| {
            let level = move |i| {
                (0..layers).map(move |j| {
                    ["resnets", "attentions"].map(|part| format!("{name}_blocks.{i}.{part}.{j}.")).to_vec()
                })
            };
            (0..self.down_blocks.len()).flat_map(level)
        };
        let layers = self.config.layers_per_block;
        let middle = vec!["mid_block.".to_owned()];
        ShardUnits::new(levels("down", layers).chain([middle]).chain(levels("up", layers + 1)))
    }

    fn identity(&self) -> (&'static str, Value) {
        ("unet", serde_json::to_value(&self.config).unwrap_or_default())
    }

    fn forward_flops(&self, shape: SampleShape) -> Result<u64, Error> {
        let SampleShape { latents: [channels, height, width], text: [tokens, text_width], .. } = shape;
        let UNetConfig { in_channels, cross_attention_dim, .. } = self.config;
        if channels != in_channels {
            let problem = format!(
                "latents have {channels} channels, but the U-Net takes {in_channels} latent channels"
            );
            return Err(Error::Denoiser(problem));
        }
        self.check_added(shape)?;
        if text_width != cross_attention_dim {
            return Err(Error::Denoiser(format!(
                "text embeddings are {text_width} wide, but the U-Net's cross_attention_dim is {cross_attention_dim}: they \
                 come from another text encoder; run `tidemill preprocess` with the model folder of this U-Net"
            )));
        }
        Ok(count_flops(&self.config, &self.params, (height, width), tokens))
    }

    fn set_gradient_checkpointing(&mut self, mode: GradientCheckpointing) -> Result<(), Error> {
        self.checkpointing = mode;
        Ok(())
    }
}
