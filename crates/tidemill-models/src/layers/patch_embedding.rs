//! The first layer of a vision transformer: an image to a sequence of patches.

use tch::Tensor;

use crate::params::{Init, Scope};

/// A convolution whose stride is its kernel: each patch of an image becomes one vector.
#[derive(Debug)]
pub struct PatchEmbedding {
    weight: Tensor,
    bias: Option<Tensor>,
    patch: i64,
}

impl PatchEmbedding {
    /// `patch`: the side of a patch in pixels.
    pub fn new(scope: Scope, channels: i64, width: i64, patch: i64, has_bias: bool) -> Self {
        let init = Init::FanIn(channels * patch * patch);
        let weight = scope.param("weight", &[width, channels, patch, patch], init);
        Self { weight, bias: has_bias.then(|| scope.param("bias", &[width], init)), patch }
    }

    /// [N, C, H, W] to [N, patches, width], row by row.
    pub fn forward(&self, images: &Tensor) -> Tensor {
        let stride = [self.patch; 2];
        let patches = images.conv2d(&self.weight, self.bias.as_ref(), stride, [0, 0], [1, 1], 1);
        patches.flatten(2, -1).transpose(1, 2)
    }

    /// Patches of an image of this size, from top to bottom and from left to right.
    pub fn grid(&self, images: &Tensor) -> [i64; 2] {
        let size = images.size();
        [size[2] / self.patch, size[3] / self.patch]
    }
}
