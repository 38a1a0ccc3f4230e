//! The network from images to features.

use std::path::Path;

use serde::Deserialize;
use tch::{Device, Kind, Tensor};

use super::blocks::{Block, Pool};
use super::conv::{ConvNormRelu, ConvShape, fold_batch_norms};
use crate::Error;
use crate::model_folder::config_file::{self, AcceptedKeys};
use crate::model_folder::weights;
use crate::params::{ParamInit, Params};

/// Side in pixels of the images that the network takes.
pub const INCEPTION_SIZE: i64 = 299;

/// The number of features.
pub const INCEPTION_FEATURES: i64 = 2048;

/// `config.json` of a folder that `scripts/convert_inception.py` makes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FidInceptionConfig {}

const ACCEPTED: AcceptedKeys = AcceptedKeys {
    class_names: &[],
    ignored: &["architectures"],
    fixed: &[("model_type", &["\"fid_inception_v3\""])],
};

/// FID's InceptionV3 (Szegedy et al., 2015, in the weights that Heusel et al., 2017, measure with).
/// It differs from torchvision's in three poolings.
#[derive(Debug)]
pub struct FidInceptionV3 {
    params: Params,
    stem: [ConvNormRelu; 5],
    blocks: Vec<Block>,
}

impl FidInceptionV3 {
    /// A network on `device` in f32, whose batch norms are not folded yet.
    fn new(device: Device, init: ParamInit) -> Self {
        let params = Params::new(device, init);
        let root = params.root();
        let conv = |name, shape| ConvNormRelu::new(root.child(name), shape);
        let scope = |name| root.child(name);
        Self {
            stem: [
                conv("Conv2d_1a_3x3", ConvShape::valid_3x3(3, 32, 2)),
                conv("Conv2d_2a_3x3", ConvShape::valid_3x3(32, 32, 1)),
                conv("Conv2d_2b_3x3", ConvShape::same(32, 64, [3, 3])),
                conv("Conv2d_3b_1x1", ConvShape::same(64, 80, [1, 1])),
                conv("Conv2d_4a_3x3", ConvShape::valid_3x3(80, 192, 1)),
            ],
            blocks: vec![
                Block::a(&scope("Mixed_5b"), 192, 32),
                Block::a(&scope("Mixed_5c"), 256, 64),
                Block::a(&scope("Mixed_5d"), 288, 64),
                Block::b(&scope("Mixed_6a"), 288),
                Block::c(&scope("Mixed_6b"), 128),
                Block::c(&scope("Mixed_6c"), 160),
                Block::c(&scope("Mixed_6d"), 160),
                Block::c(&scope("Mixed_6e"), 192),
                Block::d(&scope("Mixed_7a")),
                Block::e(&scope("Mixed_7b"), 1280, Pool::Average),
                Block::e(&scope("Mixed_7c"), 2048, Pool::Max),
            ],
            params,
        }
    }

    /// Opens a folder that `scripts/convert_inception.py` makes from the usual `.pth` file. The
    /// parameters are frozen, f32.
    ///
    /// # Errors
    /// If it is of another network, or the weights are not the network's.
    pub fn load(dir: &Path, device: Device) -> Result<Self, Error> {
        let FidInceptionConfig {} = config_file::read(&dir.join("config.json"), &ACCEPTED)?;
        let build = || Self::new(device, ParamInit::Empty);
        let model = weights::load_frozen(build, Self::params, dir, Kind::Float)?;
        tidemill_torch::guard(|| {
            fold_batch_norms(&model.params);
            model.params.make_channels_last();
        })?;
        Ok(model)
    }

    /// Images [N, 3, 299, 299] in [-1, 1] to features [N, 2048].
    pub fn encode_images(&self, images: &Tensor) -> Tensor {
        // Channels-last: on a CPU, too, this network takes half the time that it takes otherwise.
        let images = images.permute([0, 2, 3, 1]).contiguous().permute([0, 3, 1, 2]);
        let [conv_1a, conv_2a, conv_2b, conv_3b, conv_4a] = &self.stem;
        let x = conv_2b.forward(&conv_2a.forward(&conv_1a.forward(&images)));
        let x = conv_4a.forward(&conv_3b.forward(&Pool::MaxStride2.forward(&x)));
        let x = self.blocks.iter().fold(Pool::MaxStride2.forward(&x), |x, block| block.forward(&x));
        x.mean_dim([2i64, 3].as_slice(), false, Kind::Float)
    }

    /// The parameters, after folding.
    pub fn params(&self) -> &Params {
        &self.params
    }
}
