//! The blocks of InceptionV3: branches whose outputs are concatenated. Names follow torchvision's
//! `models/inception.py`. The poolings follow the TensorFlow network of FID.

use tch::Tensor;

use super::conv::{ConvNormRelu, ConvShape};
use crate::params::Scope;

/// A pooling over 3x3 pixels.
#[derive(Clone, Copy, Debug)]
pub enum Pool {
    /// The mean of the pixels inside the image.
    Average,
    /// The maximum.
    Max,
    /// The maximum, at every second pixel, without padding.
    MaxStride2,
}

impl Pool {
    pub fn forward(self, x: &Tensor) -> Tensor {
        match self {
            Self::Average => x.avg_pool2d([3, 3], [1, 1], [1, 1], false, false, None),
            Self::Max => x.max_pool2d([3, 3], [1, 1], [1, 1], [1, 1], false),
            Self::MaxStride2 => x.max_pool2d([3, 3], [2, 2], [0, 0], [1, 1], false),
        }
    }
}

/// Layers that run one after the other.
#[derive(Debug, Default)]
struct Branch {
    pool: Option<Pool>,
    convs: Vec<ConvNormRelu>,
    /// The last layers: each sees the output of the others, and all outputs are concatenated.
    heads: Vec<ConvNormRelu>,
}

impl Branch {
    fn forward(&self, x: &Tensor) -> Vec<Tensor> {
        let pooled = self.pool.map_or_else(|| x.shallow_clone(), |pool| pool.forward(x));
        let x = self.convs.iter().fold(pooled, |x, conv| conv.forward(&x));
        match self.heads.is_empty() {
            true => vec![x],
            false => self.heads.iter().map(|conv| conv.forward(&x)).collect(),
        }
    }
}

/// Branches side by side.
#[derive(Debug)]
pub struct Block(Vec<Branch>);

impl Block {
    /// [N, C, H, W] to [N, C', H', W'].
    pub fn forward(&self, x: &Tensor) -> Tensor {
        let outputs: Vec<Tensor> = self.0.iter().flat_map(|branch| branch.forward(x)).collect();
        Tensor::cat(&outputs, 1)
    }

    /// 35x35 pixels.
    pub fn a(scope: &Scope, inputs: i64, pooled: i64) -> Self {
        let builder = BlockBuilder(scope);
        Self(vec![
            builder.branch(&[("branch1x1", ConvShape::same(inputs, 64, [1, 1]))]),
            builder.branch(&[
                ("branch5x5_1", ConvShape::same(inputs, 48, [1, 1])),
                ("branch5x5_2", ConvShape::same(48, 64, [5, 5])),
            ]),
            builder.branch(&[
                ("branch3x3dbl_1", ConvShape::same(inputs, 64, [1, 1])),
                ("branch3x3dbl_2", ConvShape::same(64, 96, [3, 3])),
                ("branch3x3dbl_3", ConvShape::same(96, 96, [3, 3])),
            ]),
            builder.pool_branch(Pool::Average, inputs, pooled),
        ])
    }

    /// From 35x35 to 17x17 pixels.
    pub fn b(scope: &Scope, inputs: i64) -> Self {
        let builder = BlockBuilder(scope);
        Self(vec![
            builder.branch(&[("branch3x3", ConvShape::valid_3x3(inputs, 384, 2))]),
            builder.branch(&[
                ("branch3x3dbl_1", ConvShape::same(inputs, 64, [1, 1])),
                ("branch3x3dbl_2", ConvShape::same(64, 96, [3, 3])),
                ("branch3x3dbl_3", ConvShape::valid_3x3(96, 96, 2)),
            ]),
            Branch { pool: Some(Pool::MaxStride2), ..Branch::default() },
        ])
    }

    /// 17x17 pixels. `inner`: channels between the 7x7 convolutions' parts.
    pub fn c(scope: &Scope, inner: i64) -> Self {
        let builder = BlockBuilder(scope);
        Self(vec![
            builder.branch(&[("branch1x1", ConvShape::same(768, 192, [1, 1]))]),
            builder.branch(&[
                ("branch7x7_1", ConvShape::same(768, inner, [1, 1])),
                ("branch7x7_2", ConvShape::same(inner, inner, [1, 7])),
                ("branch7x7_3", ConvShape::same(inner, 192, [7, 1])),
            ]),
            builder.branch(&[
                ("branch7x7dbl_1", ConvShape::same(768, inner, [1, 1])),
                ("branch7x7dbl_2", ConvShape::same(inner, inner, [7, 1])),
                ("branch7x7dbl_3", ConvShape::same(inner, inner, [1, 7])),
                ("branch7x7dbl_4", ConvShape::same(inner, inner, [7, 1])),
                ("branch7x7dbl_5", ConvShape::same(inner, 192, [1, 7])),
            ]),
            builder.pool_branch(Pool::Average, 768, 192),
        ])
    }

    /// From 17x17 to 8x8 pixels.
    pub fn d(scope: &Scope) -> Self {
        let builder = BlockBuilder(scope);
        Self(vec![
            builder.branch(&[
                ("branch3x3_1", ConvShape::same(768, 192, [1, 1])),
                ("branch3x3_2", ConvShape::valid_3x3(192, 320, 2)),
            ]),
            builder.branch(&[
                ("branch7x7x3_1", ConvShape::same(768, 192, [1, 1])),
                ("branch7x7x3_2", ConvShape::same(192, 192, [1, 7])),
                ("branch7x7x3_3", ConvShape::same(192, 192, [7, 1])),
                ("branch7x7x3_4", ConvShape::valid_3x3(192, 192, 2)),
            ]),
            Branch { pool: Some(Pool::MaxStride2), ..Branch::default() },
        ])
    }

    /// 8x8 pixels. The two blocks of this kind pool in different ways.
    pub fn e(scope: &Scope, inputs: i64, pool: Pool) -> Self {
        let builder = BlockBuilder(scope);
        let heads = |names: [&'static str; 2]| {
            let shapes = [[1, 3], [3, 1]].map(|kernel| ConvShape::same(384, 384, kernel));
            builder.convs(&[(names[0], shapes[0]), (names[1], shapes[1])])
        };
        Self(vec![
            builder.branch(&[("branch1x1", ConvShape::same(inputs, 320, [1, 1]))]),
            Branch {
                heads: heads(["branch3x3_2a", "branch3x3_2b"]),
                ..builder.branch(&[("branch3x3_1", ConvShape::same(inputs, 384, [1, 1]))])
            },
            Branch {
                heads: heads(["branch3x3dbl_3a", "branch3x3dbl_3b"]),
                ..builder.branch(&[
                    ("branch3x3dbl_1", ConvShape::same(inputs, 448, [1, 1])),
                    ("branch3x3dbl_2", ConvShape::same(448, 384, [3, 3])),
                ])
            },
            builder.pool_branch(pool, inputs, 192),
        ])
    }
}

/// Creates the layers of a block under its scope.
struct BlockBuilder<'a>(&'a Scope<'a>);

impl BlockBuilder<'_> {
    fn convs(&self, layers: &[(&str, ConvShape)]) -> Vec<ConvNormRelu> {
        layers.iter().map(|(name, shape)| ConvNormRelu::new(self.0.child(name), *shape)).collect()
    }

    fn branch(&self, layers: &[(&str, ConvShape)]) -> Branch {
        Branch { convs: self.convs(layers), ..Branch::default() }
    }

    fn pool_branch(&self, pool: Pool, inputs: i64, outputs: i64) -> Branch {
        let convs = self.convs(&[("branch_pool", ConvShape::same(inputs, outputs, [1, 1]))]);
        Branch { pool: Some(pool), convs, ..Branch::default() }
    }
}
