//! Positions of patches as vectors: sines and cosines of their row and column (diffusers'
//! `get_2d_sincos_pos_embed`).

use tch::{Device, Kind, Tensor};

/// Positions of a square of `side` x `side` patches: [side, side, width], f32. `base` patches have a distance of one
/// each; the positions of a larger square lie closer together.
pub fn position_embedding(width: i64, side: i64, base: i64, device: Device) -> Tensor {
    let options = (Kind::Float, device);
    // In f32, as diffusers divides.
    let positions = Tensor::arange(side, options) / (side as f64 / base as f64);
    let of_axis = axis_embedding(width / 2, &positions.to_kind(Kind::Double));
    // The first half says the column.
    let columns = of_axis.unsqueeze(0).expand([side, side, width / 2], false);
    let rows = of_axis.unsqueeze(1).expand([side, side, width / 2], false);
    Tensor::cat(&[columns, rows], -1).to_kind(Kind::Float)
}

/// Positions [N] along one axis, f64, as vectors [N, width].
fn axis_embedding(width: i64, positions: &Tensor) -> Tensor {
    let half = width / 2;
    let exponent = Tensor::arange(half, (Kind::Double, positions.device())) / half as f64;
    let frequencies = (exponent * -(10_000f64.ln())).exp();
    let angles = positions.outer(&frequencies);
    Tensor::cat(&[angles.sin(), angles.cos()], 1)
}

/// The middle of such a square, for images of this height and width in patches: [1, height x width, width].
pub fn crop_positions(square: &Tensor, [height, width]: [i64; 2]) -> Tensor {
    let side = square.size()[0];
    let middle = square.narrow(0, (side - height) / 2, height).narrow(1, (side - width) / 2, width);
    middle.reshape([1, height * width, -1])
}
