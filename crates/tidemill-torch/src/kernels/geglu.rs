//! GEGLU (Shazeer, *GLU Variants Improve Transformer*, 2020) without its projection.

use pulp::NullaryFnOnce;
use tch::{Kind, Tensor};

use super::element::{Bf16, Element};
use super::math::normal;
use super::{elements, elements_mut, empty_like, gpu, has_kernels, vectorised};
use crate::operation::{Backward, differentiable};
use crate::parallel::{Parts, parallel};
use crate::{Error, guard};

/// `a * gelu(b)` of x [..., 2 W], which holds a and then b in each row: [..., W]. GELU is the exact one. A bias [2 W] is added to x
/// first, by the kernels for GPUs in the same pass.
///
/// # Errors
/// If memory does not suffice.
pub fn geglu(x: &Tensor, bias: Option<&Tensor>) -> Result<Tensor, Error> {
    if let Some(on_gpu) = gpu::geglu(x, bias) {
        return on_gpu;
    }
    if let Some(bias) = bias {
        return geglu(&guard(|| x + bias)?, None);
    }
    if !has_kernels(x) {
        return guard(|| {
            let both = x.chunk(2, -1);
            &both[0] * both[1].gelu("none")
        });
    }
    let x = &guard(|| x.contiguous())?;
    let output = match x.kind() {
        Kind::Float => forward::<f32>(x),
        _ => forward::<Bf16>(x),
    }?;
    differentiable(Geglu, &[&output], &[x], &[x])?;
    Ok(output)
}

struct Geglu;

impl Backward for Geglu {
    fn backward(&self, kept: &[Tensor], grads: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let x = &kept[0];
        let grad = &guard(|| grads[0].to_kind(x.kind()).contiguous())?;
        let found = match x.kind() {
            Kind::Float => backward::<f32>(x, grad),
            _ => backward::<Bf16>(x, grad),
        };
        Ok(vec![found?])
    }
}

/// The number of rows, and W.
fn sizes(x: &Tensor) -> (usize, usize) {
    let both = x.size().last().map_or(1, |both| *both as usize);
    (x.numel() / both.max(1), both / 2)
}

fn forward<T: Element>(x: &Tensor) -> Result<Tensor, Error> {
    let (rows, width) = sizes(x);
    let mut size = x.size();
    size[x.dim() - 1] = width as i64;
    let mut output = guard(|| Tensor::empty(size, (x.kind(), x.device())))?;
    let (input, parts) = (elements::<T>(x), Parts::new(elements_mut::<T>(&mut output)));
    parallel(c"tidemill::geglu", rows, |rows| {
        for row in rows {
            // SAFETY: each row is taken once.
            let output = unsafe { parts.get(width * row..width * (row + 1)) };
            let (a, b) = input[2 * width * row..][..2 * width].split_at(width);
            vectorised(ForwardRow { a, b, output });
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
            let b = b.get();
            *output = T::of(a.get() * b * normal(b)[0]);
        }
    }
}

fn backward<T: Element>(x: &Tensor, grad: &Tensor) -> Result<Tensor, Error> {
    let (rows, width) = sizes(x);
    let mut found = empty_like(x)?;
    let (input, grads) = (elements::<T>(x), elements::<T>(grad));
    let parts = Parts::new(elements_mut::<T>(&mut found));
    parallel(c"tidemill::geglu_backward", rows, |rows| {
        for row in rows {
            let (a, b) = input[2 * width * row..][..2 * width].split_at(width);
            // SAFETY: each row is taken once.
            let to_both = unsafe { parts.get(2 * width * row..2 * width * (row + 1)) };
            let (to_a, to_b) = to_both.split_at_mut(width);
            vectorised(BackwardRow { a, b, grad: &grads[width * row..][..width], to_a, to_b });
        }
    })?;
    Ok(found)
}

struct BackwardRow<'a, T> {
    a: &'a [T],
    b: &'a [T],
    grad: &'a [T],
    to_a: &'a mut [T],
    to_b: &'a mut [T],
}

impl<T: Element> NullaryFnOnce for BackwardRow<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let inputs = self.a.iter().zip(self.b).zip(self.grad);
        for ((to_a, to_b), ((a, b), grad)) in self.to_a.iter_mut().zip(self.to_b).zip(inputs) {
            let (b, grad) = (b.get(), grad.get());
            let [cumulative, density] = normal(b);
            *to_a = T::of(grad * b * cumulative);
            *to_b = T::of(grad * a.get() * (cumulative + b * density));
        }
    }
}
