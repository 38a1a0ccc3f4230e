//! Sums over rows, which are the gradients of biases.

use tch::{Kind, Tensor};

/// Whether [`sum_rows`] takes a product for sums of tensors like this one. On a GPU it takes half
/// the time of libtorch's sum (docs/benchmarks.md). In f32, products could round to TF32.
pub fn sums_by_product(x: &Tensor) -> bool {
    x.device().is_cuda() && matches!(x.kind(), Kind::BFloat16 | Kind::Half)
}

/// The sums of x [..., rows, C] over its rows, in the dtype of x: [..., C].
///
/// # Panics
/// Where tch would: run it in [`guard`](crate::guard()).
pub fn sum_rows(x: &Tensor) -> Tensor {
    if !sums_by_product(x) {
        return x.sum_dim_intlist([-2i64].as_slice(), false, x.kind());
    }
    let mut size = x.size();
    let (rows, columns) = (size[size.len() - 2], size[size.len() - 1]);
    size.truncate(size.len() - 2);
    let ones = Tensor::ones([1, rows], (x.kind(), x.device()));
    let ones = ones.expand([&size[..], &[1, rows]].concat(), false);
    ones.matmul(x).reshape([&size[..], &[columns]].concat())
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::*;

    #[test]
    fn rows_are_summed_for_each_matrix() {
        let x = Tensor::arange(12, (Kind::Float, Device::Cpu));
        let sums = |size: &[i64]| Vec::<f32>::try_from(sum_rows(&x.reshape(size)).reshape([-1])).unwrap();
        assert_eq!(sums(&[4, 3]), [18.0, 22.0, 26.0]);
        assert_eq!(sums(&[2, 2, 3]), [3.0, 5.0, 7.0, 15.0, 17.0, 19.0]);
    }
}
