//! The order of a parameter's elements in buckets and checkpoints. It is the order of the network's
//! own memory, so that neither a step nor a collective has to reorder them.

use serde::{Deserialize, Serialize};
use tch::Tensor;

/// The order of a parameter's elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ElementOrder {
    /// The last dimension varies fastest.
    #[default]
    RowMajor,
    /// For a convolution's weight [O, I, H, W] the input channels vary fastest: memory is
    /// [O, H, W, I].
    ChannelsLast,
}

impl ElementOrder {
    /// The order of a tensor's memory; [`RowMajor`](Self::RowMajor) if it is in neither order.
    pub fn from_tensor(tensor: &Tensor) -> Self {
        let [_, inputs, height, width] = tensor.size()[..] else { return Self::RowMajor };
        let is_channels_last = tensor.stride() == [height * width * inputs, 1, width * inputs, inputs];
        // With one channel or one pixel both orders are the same.
        if is_channels_last && inputs > 1 && height * width > 1 { Self::ChannelsLast } else { Self::RowMajor }
    }

    /// Whether this is the default order.
    pub fn is_row_major(&self) -> bool {
        *self == Self::RowMajor
    }

    /// A parameter's elements in this order: [N]. A view if its memory is in this order, else a
    /// copy.
    pub fn flatten(self, parameter: &Tensor) -> Tensor {
        match self {
            Self::RowMajor => parameter.reshape([-1]),
            Self::ChannelsLast => parameter.permute([0, 2, 3, 1]).reshape([-1]),
        }
    }

    /// A view of elements [N], which are in this order, as a parameter of `shape`.
    pub fn unflatten(self, elements: &Tensor, shape: &[i64]) -> Tensor {
        match (self, shape) {
            (Self::ChannelsLast, [o, i, h, w]) => elements.view([*o, *h, *w, *i]).permute([0, 3, 1, 2]),
            _ => elements.view(shape),
        }
    }

    /// Converts the index of an element in this order to its index in the other order, for a
    /// parameter of `shape`.
    pub fn to_other_order(self, shape: &[i64], index: usize) -> usize {
        let [_, inputs, height, width] = *shape else { return index };
        let (inputs, pixels) = (inputs as usize, (height * width) as usize);
        let (output, within) = (index / (inputs * pixels), index % (inputs * pixels));
        // Within an output channel, elements are a matrix [inputs, pixels] in row-major order and
        // [pixels, inputs] in channels-last order. This transposes it.
        let columns = if self == Self::RowMajor { pixels } else { inputs };
        let rows = inputs * pixels / columns;
        output * inputs * pixels + within % columns * rows + within / columns
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    #[test]
    fn flatten_and_unflatten_keep_every_element() {
        for shape in
            [vec![3, 4, 2, 5], vec![2, 3, 3, 3], vec![3, 4, 1, 1], vec![3, 1, 2, 2], vec![6], vec![2, 5]]
        {
            let count: i64 = shape.iter().product();
            let parameter = Tensor::arange(count, (Kind::Float, Device::Cpu)).view(shape.as_slice());
            assert_eq!(ElementOrder::from_tensor(&parameter), ElementOrder::RowMajor);
            let orders: &[ElementOrder] = if shape.len() == 4 {
                &[ElementOrder::RowMajor, ElementOrder::ChannelsLast]
            } else {
                &[ElementOrder::RowMajor]
            };
            for order in orders {
                let flat = order.flatten(&parameter);
                let shaped = order.unflatten(&flat, &shape);
                assert!(shaped.equal(&parameter) && shaped.data_ptr() == flat.data_ptr());
                let trivial = shape.len() < 4 || shape[1] == 1 || shape[2] * shape[3] == 1;
                let expected = if trivial { ElementOrder::RowMajor } else { *order };
                assert_eq!(ElementOrder::from_tensor(&shaped), expected, "{shape:?}");
                assert_eq!(order.flatten(&shaped).data_ptr(), flat.data_ptr(), "nothing is copied");
                let other = match order {
                    ElementOrder::RowMajor => ElementOrder::ChannelsLast,
                    ElementOrder::ChannelsLast => ElementOrder::RowMajor,
                };
                if shape.len() == 4 {
                    let (flat, other) = (Vec::<f32>::try_from(&flat).unwrap(), other.flatten(&parameter));
                    let other = Vec::<f32>::try_from(&other).unwrap();
                    for (index, value) in flat.iter().enumerate() {
                        let found = other[order.to_other_order(&shape, index)];
                        assert_eq!(found, *value, "{shape:?} {order:?} {index}");
                    }
                }
            }
        }
    }
}
