//! The denoiser of Stable Diffusion 3 (diffusers' SD3Transformer2DModel).

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use tch::{Device, Kind, Tensor};

use super::activations::count_activations;
use super::block::JointTransformerBlock;
use super::config::SD3TransformerConfig;
use super::cost::{Tokens, count_flops};
use super::modulation::{Modulation, modulate};
use super::position_embedding::{crop_positions, position_embedding};
use crate::denoiser::{Conditions, Denoiser, SampleShape, TrainableDenoiser};
use crate::error::Error;
use crate::layers::{Linear, PatchEmbedding, timestep_embedding};
use crate::model_folder::weight_files::DIFFUSERS_FILE;
use crate::model_folder::weights;
use crate::params::{ParamInit, Params};
use crate::{Activations, GradientCheckpointing, ShardUnits};

/// Width of the sinusoidal embedding of timesteps.
const TIME_WIDTH: i64 = 256;

/// Stable Diffusion 3's transformer.
#[derive(Debug)]
pub struct SD3Transformer2DModel {
    config: SD3TransformerConfig,
    params: Params,
    patches: PatchEmbedding,
    /// Positions [side, side, width], f32.
    positions: Tensor,
    timestep_embedder: [Linear; 2],
    text_embedder: [Linear; 2],
    context_embedder: Linear,
    blocks: Vec<Arc<JointTransformerBlock>>,
    norm_out: Modulation,
    proj_out: Linear,
    checkpointing: GradientCheckpointing,
}

impl SD3Transformer2DModel {
    /// A transformer on `device` in f32.
    ///
    /// # Errors
    /// If the configuration is inconsistent, or memory does not suffice.
    pub fn new(config: SD3TransformerConfig, device: Device, init: ParamInit) -> Result<Self, Error> {
        config.check(Path::new("transformer/config.json"))?;
        Ok(tidemill_torch::guard(|| Self::build(config, device, init))?)
    }

    /// Opens a `transformer/` folder in f32.
    ///
    /// # Errors
    /// If the configuration is not supported or the weights do not fit it.
    pub fn load(dir: &Path, device: Device) -> Result<Self, Error> {
        let config = SD3TransformerConfig::read(&dir.join("config.json"))?;
        let model = Self::new(config, device, ParamInit::Empty)?;
        weights::load_weights(&model.params, dir)?;
        Ok(model)
    }

    /// Writes a `transformer/` folder that diffusers' `SD3Transformer2DModel.from_pretrained` opens.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn save(&self, dir: &Path) -> Result<(), Error> {
        self.config.write(&dir.join("config.json"))?;
        let mut tensors = self.params.named_parameters();
        tensors.extend(self.params.named_buffers());
        weights::save_weights(&tensors, &dir.join(DIFFUSERS_FILE))
    }

    fn build(config: SD3TransformerConfig, device: Device, init: ParamInit) -> Self {
        let params = Params::new(device, init);
        let (scope, width) = (params.root(), config.width());
        let pair = |name: &str, inputs| {
            let scope = scope.child("time_text_embed").child(name);
            [
                Linear::new(scope.child("linear_1"), inputs, width),
                Linear::new(scope.child("linear_2"), width, width),
            ]
        };
        let (patch, side) = (config.patch_size, config.pos_embed_max_size);
        let embedding = scope.child("pos_embed");
        let square = || position_embedding(width, side, config.sample_size / patch, device);
        let positions = embedding.buffer("pos_embed", &[1, side * side, width], square);
        let blocks = scope.child("transformer_blocks");
        Self {
            patches: PatchEmbedding::new(embedding.child("proj"), config.in_channels, width, patch, true),
            positions,
            timestep_embedder: pair("timestep_embedder", TIME_WIDTH),
            text_embedder: pair("text_embedder", config.pooled_projection_dim),
            context_embedder: Linear::new(scope.child("context_embedder"), config.joint_attention_dim, width),
            blocks: (0..config.num_layers)
                .map(|layer| JointTransformerBlock::new(blocks.child(layer), &config, layer))
                .collect(),
            norm_out: Modulation::new(scope.child("norm_out"), width, 2),
            proj_out: Linear::new(scope.child("proj_out"), width, patch * patch * config.out_channels),
            config,
            params,
            checkpointing: GradientCheckpointing::Off,
        }
    }

    /// The configuration.
    pub fn config(&self) -> &SD3TransformerConfig {
        &self.config
    }

    /// The parameters.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The SiLU of the embedding of timesteps and pooled text: [N, width].
    fn embed_time(&self, timesteps: &Tensor, pooled: &Tensor, kind: Kind) -> Tensor {
        let sines = timestep_embedding(timesteps, TIME_WIDTH, true, 0).to_kind(kind);
        let embed = |[first, second]: &[Linear; 2], x: &Tensor| second.forward(&first.forward(x).silu());
        (embed(&self.timestep_embedder, &sines) + embed(&self.text_embedder, pooled)).silu()
    }

    /// Latents [N, C, h, w] to tokens [N, patches, width] with their positions.
    fn embed_patches(&self, sample: &Tensor) -> Tensor {
        let side = self.config.pos_embed_max_size;
        let square = self.positions.view([side, side, -1]);
        let positions = crop_positions(&square, self.patches.grid(sample));
        self.patches.forward(sample).contiguous() + positions.to_kind(sample.kind())
    }

    /// Tokens [N, patches, p p C] to [N, C, h, w].
    fn join_patches(&self, tokens: &Tensor, [rows, columns]: [i64; 2]) -> Tensor {
        let (patch, channels) = (self.config.patch_size, self.config.out_channels);
        let tokens = tokens.view([-1, rows, columns, patch, patch, channels]);
        tokens.permute([0, 5, 1, 3, 2, 4]).reshape([-1, channels, rows * patch, columns * patch])
    }
}

impl Denoiser for SD3Transformer2DModel {
    #[expect(clippy::expect_used, reason = "as tch's operators do; `forward_flops` refuses such samples")]
    fn denoise(&self, sample: &Tensor, timesteps: &Tensor, conditions: &Conditions) -> Tensor {
        let before_module = |name: std::fmt::Arguments| self.params.run_pre_forward_hook(name);
        let pooled = conditions.pooled.as_ref().expect("this transformer takes pooled text");
        before_module(format_args!("pos_embed"));
        let mut image = self.embed_patches(sample);
        before_module(format_args!("time_text_embed"));
        let time = self.embed_time(timesteps, pooled, sample.kind());
        before_module(format_args!("context_embedder"));
        let mut text = self.context_embedder.forward(&conditions.text);
        for (i, block) in self.blocks.iter().enumerate() {
            before_module(format_args!("transformer_blocks.{i}"));
            self.params.begin_shard_unit(i);
            let (next_image, next_text) = block.run(&image, &text, &time, self.checkpointing);
            self.params.end_shard_unit(i, [&next_image].into_iter().chain(&next_text));
            image = next_image;
            text = next_text.unwrap_or(text);
        }
        before_module(format_args!("norm_out"));
        let modulation = self.norm_out.forward(&time);
        let image = modulate(&image, &modulation[1], &modulation[0]);
        before_module(format_args!("proj_out"));
        self.join_patches(&self.proj_out.forward(&image), self.patches.grid(sample))
    }

    fn image_seq_len(&self, [height, width]: [i64; 2]) -> i64 {
        let patch = self.config.patch_size;
        (height / patch) * (width / patch)
    }
}

impl SD3Transformer2DModel {
    /// The tokens of one sample.
    fn tokens(
        &self,
        SampleShape { latents: [_, height, width], text: [text, _], .. }: SampleShape,
    ) -> Tokens {
        Tokens { image: self.image_seq_len([height, width]), text }
    }
}

impl TrainableDenoiser for SD3Transformer2DModel {
    fn params(&self) -> &Params {
        &self.params
    }

    fn identity(&self) -> (&'static str, Value) {
        ("transformer", serde_json::to_value(&self.config).unwrap_or_default())
    }

    fn activations(&self, shape: SampleShape) -> Option<Vec<Activations>> {
        Some(count_activations(&self.config, &self.params, self.tokens(shape), self.checkpointing))
    }

    fn shard_units(&self) -> ShardUnits {
        ShardUnits::new((0..self.blocks.len()).map(|i| vec![format!("transformer_blocks.{i}.")]))
    }

    fn forward_flops(&self, shape: SampleShape) -> Result<u64, Error> {
        let SampleShape { latents: [channels, height, width], text: [_, text_width], pooled, .. } = shape;
        let config = &self.config;
        let patch = config.patch_size;
        let problem = match () {
            () if channels != config.in_channels => format!(
                "latents have {channels} channels, but the transformer takes {} latent channels",
                config.in_channels
            ),
            () if pooled != Some(config.pooled_projection_dim) => format!(
                "the transformer takes a pooled text of {} numbers, and there are {}: the model folder needs text encoders with \
                 projections of this width together",
                config.pooled_projection_dim,
                pooled.unwrap_or(0)
            ),
            () if text_width != config.joint_attention_dim => format!(
                "text embeddings are {text_width} wide, but the transformer's joint_attention_dim is {}: they come from \
                 other text encoders; run `tidemill preprocess` with the model folder of this transformer",
                config.joint_attention_dim
            ),
            () if height % patch != 0 || width % patch != 0 => {
                format!("latents of {height} x {width} cannot be cut into patches of {patch} x {patch}")
            }
            () if height.max(width) / patch > config.pos_embed_max_size => format!(
                "latents of {height} x {width} are more than {0} patches a side, and the transformer has no positions for them \
                 (pos_embed_max_size = {0})",
                config.pos_embed_max_size
            ),
            () => return Ok(count_flops(config, &self.params, self.tokens(shape))),
        };
        Err(Error::Denoiser(problem))
    }

    fn set_gradient_checkpointing(&mut self, mode: GradientCheckpointing) -> Result<(), Error> {
        self.checkpointing = mode;
        Ok(())
    }
}
