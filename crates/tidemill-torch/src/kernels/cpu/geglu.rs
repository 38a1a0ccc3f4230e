//! GEGLU (Shazeer, *GLU Variants Improve Transformer*, 2020) without its projection.

use pulp::NullaryFnOnce;
use tch::{Kind, Tensor};

use super::element::{Bf16, Element};
use super::simd::run_vectorised;
use super::tensor_slices::{as_mut_slice, as_slice};
use super::vector_math::normal_cdf_and_density;
use crate::autograd::{Backward, attach_backward};
use crate::kernels::layout::empty_contiguous_like;
use crate::threads::{DisjointSlices, parallel_for};
use crate::{Error, guard};

/// `a * gelu(b)` of x [..., 2 W], which holds a and then b in each row: [..., W].
///
/// # Errors
/// If memory does not suffice.
pub fn geglu(x: &Tensor) -> Result<Tensor, Error> {
    let x = &guard(|| x.contiguous())?;
    let output = match x.kind() {
        Kind::Float => forward::<f32>(x),
        _ => forward::<Bf16>(x),
    }?;
    attach_backward(Geglu, &[&output], &[x], &[x])?;
    Ok(output)
}

struct Geglu;

impl Backward for Geglu {
    fn backward(&self, saved: &[Tensor], output_grads: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let x = &saved[0];
        let grad = &guard(|| output_grads[0].to_kind(x.kind()).contiguous())?;
        let x_grad = match x.kind() {
            Kind::Float => backward::<f32>(x, grad),
            _ => backward::<Bf16>(x, grad),
        };
        Ok(vec![x_grad?])
    }
}

/// The number of rows, and W.
fn rows_and_width(x: &Tensor) -> (usize, usize) {
    let row_length = x.size().last().map_or(1, |length| *length as usize);
    (x.numel() / row_length.max(1), row_length / 2)
}

fn forward<T: Element>(x: &Tensor) -> Result<Tensor, Error> {
    let (rows, width) = rows_and_width(x);
    let mut size = x.size();
    size[x.dim() - 1] = width as i64;
    let mut output = guard(|| Tensor::empty(size, (x.kind(), x.device())))?;
    let (input, outputs) = (as_slice::<T>(x), DisjointSlices::new(as_mut_slice::<T>(&mut output)));
    parallel_for(c"tidemill::geglu", rows, |rows| {
        for row in rows {
            // SAFETY: each row is in one range.
            let output = unsafe { outputs.get_mut(width * row..width * (row + 1)) };
            let (a, b) = input[2 * width * row..][..2 * width].split_at(width);
            run_vectorised(ForwardRow { a, b, output });
        }
    })?;
    Ok(output)
}

struct ForwardRow<'a, T> {
    a: &'a [T],
    b: &'a [T],
    output: &'a mut [T],
}

impl<T: Element> NullaryFnOnce for ForwardRow<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for ((output, a), b) in self.output.iter_mut().zip(self.a).zip(self.b) {
            let b = b.to_f32();
            *output = T::from_f32(a.to_f32() * b * normal_cdf_and_density(b)[0]);
        }
    }
}

/// The gradient of x.
fn backward<T: Element>(x: &Tensor, grad: &Tensor) -> Result<Tensor, Error> {
    let (rows, width) = rows_and_width(x);
    let mut x_grad = empty_contiguous_like(x)?;
    let (input, grads) = (as_slice::<T>(x), as_slice::<T>(grad));
    let outputs = DisjointSlices::new(as_mut_slice::<T>(&mut x_grad));
    parallel_for(c"tidemill::geglu_backward", rows, |rows| {
        for row in rows {
            let (a, b) = input[2 * width * row..][..2 * width].split_at(width);
            // SAFETY: each row is in one range.
            let row_grad = unsafe { outputs.get_mut(2 * width * row..2 * width * (row + 1)) };
            let (a_grad, b_grad) = row_grad.split_at_mut(width);
            run_vectorised(BackwardRow { a, b, grad: &grads[width * row..][..width], a_grad, b_grad });
        }
    })?;
    Ok(x_grad)
}

struct BackwardRow<'a, T> {
    a: &'a [T],
    b: &'a [T],
    grad: &'a [T],
    a_grad: &'a mut [T],
    b_grad: &'a mut [T],
}

impl<T: Element> NullaryFnOnce for BackwardRow<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let inputs = self.a.iter().zip(self.b).zip(self.grad);
        for ((a_grad, b_grad), ((a, b), grad)) in self.a_grad.iter_mut().zip(self.b_grad).zip(inputs) {
            let (b, grad) = (b.to_f32(), grad.to_f32());
            let [cumulative, density] = normal_cdf_and_density(b);
            *a_grad = T::from_f32(grad * b * cumulative);
            *b_grad = T::from_f32(grad * a.to_f32() * (cumulative + b * density));
        }
    }
}
