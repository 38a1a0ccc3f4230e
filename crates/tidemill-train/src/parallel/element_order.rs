//! The order in which a parameter's elements lie in buckets and checkpoints. It is that in which the network has them, so that neither
//! a step nor a collective has to put them in another one.

use serde::{Deserialize, Serialize};
use tch::Tensor;

/// How the elements of a parameter follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// The last dimension first.
    #[default]
    RowMajor,
    /// Of a convolution's weight [O, I, H, W] the inputs first: as [O, H, W, I].
    ChannelsLast,
}

impl Order {
    /// That of a tensor; of one that lies in neither, the first.
    pub fn of(tensor: &Tensor) -> Self {
        let [_, inputs, height, width] = tensor.size()[..] else { return Self::RowMajor };
        let so = tensor.stride() == [height * width * inputs, 1, width * inputs, inputs];
        // Where there is one of either, both are the same.
        if so && inputs > 1 && height * width > 1 { Self::ChannelsLast } else { Self::RowMajor }
    }

    /// Whether it is the one that goes without saying.
    pub fn is_row_major(&self) -> bool {
        *self == Self::RowMajor
    }

    /// The elements of a parameter in this order: [N]. Without a copy if they lie so.
    pub fn flat(self, parameter: &Tensor) -> Tensor {
        match self {
            Self::RowMajor => parameter.reshape([-1]),
            Self::ChannelsLast => parameter.permute([0, 2, 3, 1]).reshape([-1]),
        }
    }

    /// Elements [N] in this order as a parameter of this shape, where they lie.
    pub fn shaped(self, elements: &Tensor, shape: &[i64]) -> Tensor {
        match (self, shape) {
            (Self::ChannelsLast, [o, i, h, w]) => elements.view([*o, *h, *w, *i]).permute([0, 3, 1, 2]),
            _ => elements.view(shape),
        }
    }

    /// Where the element at a place in this order is in the other order, for a parameter of this shape.
    pub fn in_other(self, shape: &[i64], place: usize) -> usize {
        let [_, inputs, height, width] = *shape else { return place };
        let (inputs, pixels) = (inputs as usize, (height * width) as usize);
        let (output, within) = (place / (inputs * pixels), place % (inputs * pixels));
        // Of two dimensions within an output the second becomes the first.
        let second = if self == Self::RowMajor { pixels } else { inputs };
        let first = inputs * pixels / second;
        output * inputs * pixels + within % second * first + within / second
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    #[test]
    fn elements_keep_their_places() {
        for shape in
            [vec![3, 4, 2, 5], vec![2, 3, 3, 3], vec![3, 4, 1, 1], vec![3, 1, 2, 2], vec![6], vec![2, 5]]
        {
            let count: i64 = shape.iter().product();
            let parameter = Tensor::arange(count, (Kind::Float, Device::Cpu)).view(shape.as_slice());
            assert_eq!(Order::of(&parameter), Order::RowMajor);
            let orders: &[Order] =
                if shape.len() == 4 { &[Order::RowMajor, Order::ChannelsLast] } else { &[Order::RowMajor] };
            for order in orders {
                let flat = order.flat(&parameter);
                let shaped = order.shaped(&flat, &shape);
                assert!(shaped.equal(&parameter) && shaped.data_ptr() == flat.data_ptr());
                let trivial = shape.len() < 4 || shape[1] == 1 || shape[2] * shape[3] == 1;
                let expected = if trivial { Order::RowMajor } else { *order };
                assert_eq!(Order::of(&shaped), expected, "{shape:?}");
                assert_eq!(order.flat(&shaped).data_ptr(), flat.data_ptr(), "nothing is copied");
                let other = match order {
                    Order::RowMajor => Order::ChannelsLast,
                    Order::ChannelsLast => Order::RowMajor,
                };
                if shape.len() == 4 {
                    let (flat, other) = (Vec::<f32>::try_from(&flat).unwrap(), other.flat(&parameter));
                    let other = Vec::<f32>::try_from(&other).unwrap();
                    for (place, value) in flat.iter().enumerate() {
                        assert_eq!(
                            other[order.in_other(&shape, place)],
                            *value,
                            "{shape:?} {order:?} {place}"
                        );
                    }
                }
            }
        }
    }
}
