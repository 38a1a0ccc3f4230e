//! DINOv2's vision transformer.

use std::path::Path;

use tch::{Device, Kind, Tensor};

use super::config::Dinov2Config;
use super::layer::Layer;
use crate::Error;
use crate::layers::{LayerNorm, PatchEmbedding};
use crate::model_folder::weights;
use crate::params::{Init, ParamInit, Params};

/// DINOv2.
#[derive(Debug)]
pub struct Dinov2Model {
    config: Dinov2Config,
    params: Params,
    class_token: Tensor,
    patch_embedding: PatchEmbedding,
    /// [1, positions + 1, D]; the first one is of the class token.
    position_embeddings: Tensor,
    layers: Vec<Layer>,
    norm: LayerNorm,
}

impl Dinov2Model {
    /// A model on `device` in f32.
    pub fn new(config: Dinov2Config, device: Device, init: ParamInit) -> Self {
        let params = Params::new(device, init);
        let (root, width) = (params.root(), config.hidden_size);
        let embeddings = root.child("embeddings");
        let token = |name, shape: &[i64]| embeddings.param(name, shape, Init::Normal(0.02));
        if config.use_mask_token {
            let _ = token("mask_token", &[1, width]);
        }
        let positions = (config.image_size / config.patch_size).pow(2) + 1;
        let projection = embeddings.child("patch_embeddings").child("projection");
        Self {
            class_token: token("cls_token", &[1, 1, width]),
            patch_embedding: PatchEmbedding::new(projection, 3, width, config.patch_size, true),
            position_embeddings: token("position_embeddings", &[1, positions, width]),
            layers: (0..config.num_hidden_layers)
                .map(|i| Layer::new(root.child("encoder").child("layer").child(i), &config))
                .collect(),
            norm: LayerNorm::new(root.child("layernorm"), width, config.layer_norm_eps),
            config,
            params,
        }
    }

    /// Opens a folder of transformers' Dinov2Model; the parameters are frozen and cast to `kind`.
    ///
    /// # Errors
    /// If the configuration is not supported or the weights do not fit it.
    pub fn load(dir: &Path, device: Device, kind: Kind) -> Result<Self, Error> {
        let config = Dinov2Config::read(&dir.join("config.json"))?;
        let build = || Self::new(config, device, ParamInit::Empty);
        weights::load_frozen(build, Self::params, dir, kind)
    }

    /// Images [N, 3, H, W], normalised, with sides that are multiples of the patch, to the state of
    /// the class token [N, D] (transformers' `pooler_output`).
    pub fn encode_images(&self, images: &Tensor) -> Tensor {
        let patches = self.patch_embedding.forward(images);
        let class = self.class_token.expand([patches.size()[0], 1, -1], false);
        let positions = self.interpolate_positions(self.patch_embedding.grid(images));
        let mut x = Tensor::cat(&[class, patches], 1) + positions;
        for layer in &self.layers {
            x = layer.forward(&x);
        }
        self.norm.forward(&x.select(1, 0))
    }

    /// The position embeddings for a grid of patches, from those of the configured image size.
    fn interpolate_positions(&self, grid: [i64; 2]) -> Tensor {
        let side = self.config.image_size / self.config.patch_size;
        if grid == [side, side] {
            return self.position_embeddings.shallow_clone();
        }
        let embeddings = &self.position_embeddings;
        let (class, patches) = (embeddings.narrow(1, 0, 1), embeddings.narrow(1, 1, side * side));
        let image = patches.reshape([1, side, side, -1]).permute([0, 3, 1, 2]).to_kind(Kind::Float);
        let resized = image.upsample_bicubic2d(grid, false, None, None).to_kind(patches.kind());
        Tensor::cat(&[class, resized.flatten(2, -1).transpose(1, 2)], 1)
    }

    /// The configuration.
    pub fn config(&self) -> &Dinov2Config {
        &self.config
    }

    /// The parameters.
    pub fn params(&self) -> &Params {
        &self.params
    }
}
