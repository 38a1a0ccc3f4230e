//! The two towers of CLIP with their projections.

use std::path::Path;

use tch::{Device, Kind, Tensor};

use super::config::ClipConfig;
use super::vision_transformer::VisionTransformer;
use crate::Error;
use crate::layers::Linear;
use crate::model_folder::weights;
use crate::params::{Init, ParamInit, Params};
use crate::text_encoder::TextTransformer;

/// CLIP: images and texts to vectors of the same space. PickScore and HPSv2 are models of this
/// form.
#[derive(Debug)]
pub struct ClipModel {
    config: ClipConfig,
    params: Params,
    text: TextTransformer,
    vision: VisionTransformer,
    text_projection: Linear,
    visual_projection: Linear,
    logit_scale: Tensor,
}

impl ClipModel {
    /// A model on `device` in f32.
    pub fn new(config: ClipConfig, device: Device, init: ParamInit) -> Self {
        let params = Params::new(device, init);
        let root = params.root();
        let projection =
            |name, width| Linear::new_without_bias(root.child(name), width, config.projection_dim);
        Self {
            text: TextTransformer::new(root.child("text_model"), &config.text),
            vision: VisionTransformer::new(root.child("vision_model"), &config.vision),
            text_projection: projection("text_projection", config.text.hidden_size),
            visual_projection: projection("visual_projection", config.vision.hidden_size),
            // ln(1 / 0.07), as Radford et al., 2021, start training.
            logit_scale: root.param("logit_scale", &[], Init::Const(2.6592)),
            config,
            params,
        }
    }

    /// Opens a folder of transformers' CLIPModel; the parameters are frozen and cast to `kind`.
    ///
    /// # Errors
    /// If the configuration is not supported or the weights do not fit it.
    pub fn load(dir: &Path, device: Device, kind: Kind) -> Result<Self, Error> {
        let config = ClipConfig::read(&dir.join("config.json"))?;
        let build = || Self::new(config, device, ParamInit::Empty);
        weights::load_frozen(build, Self::params, dir, kind)
    }

    /// Images [N, 3, S, S], normalised, to projected vectors [N, projection_dim], not of unit
    /// length (transformers' `get_image_features`).
    pub fn encode_images(&self, images: &Tensor) -> Tensor {
        self.visual_projection.forward(&self.vision.forward(images))
    }

    /// Token ids [N, L] (i64) to projected vectors [N, projection_dim], not of unit length
    /// (transformers' `get_text_features`). Attention is causal, so padding behind the end of a
    /// text has no influence.
    pub fn encode_texts(&self, ids: &Tensor) -> Tensor {
        self.text_projection.forward(&self.text.pool(&self.text.forward(ids), ids))
    }

    /// The factor by which training multiplied cosines before its softmax.
    pub fn logit_scale(&self) -> f64 {
        self.logit_scale.to_kind(Kind::Double).exp().double_value(&[])
    }

    /// The configuration.
    pub fn config(&self) -> &ClipConfig {
        &self.config
    }

    /// The parameters.
    pub fn params(&self) -> &Params {
        &self.params
    }
}
