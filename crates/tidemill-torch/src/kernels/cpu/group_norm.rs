//! Group normalisation (Wu and He, 2018) with SiLU, of contiguous images [N, C, ...].

use std::ops::Range;

use pulp::NullaryFnOnce;
use tch::{Kind, Tensor};

use super::element::{Bf16, Element};
use super::simd::{run_vectorised, sum, sum_of_pairs};
use super::tensor_slices::{as_mut_slice, as_slice, to_f32_vec};
use super::vector_math::sigmoid;
use crate::autograd::Backward;
use crate::kernels::arguments::GroupNorm;
use crate::kernels::group_norm_backward::attach_group_norm_backward;
use crate::kernels::layout::empty_contiguous_like;
use crate::threads::{DisjointSlices, parallel_for};
use crate::{Error, guard};

/// The SiLU of the norm of x, in f32 or bf16, with gradients. Returns x, with `with_residual` as an
/// output of its own, and the result.
///
/// # Errors
/// If memory does not suffice.
pub fn group_norm_silu(
    norm: GroupNorm<'_>,
    x: &Tensor,
    with_residual: bool,
) -> Result<(Tensor, Tensor), Error> {
    let GroupNorm { weight, bias, groups, eps, .. } = norm;
    let contiguous = &guard(|| x.contiguous())?;
    let shape = Shape::new(contiguous, groups as usize);
    let (output, moments) = match x.kind() {
        Kind::Float => forward::<f32>(shape, contiguous, weight, bias, eps),
        _ => forward::<Bf16>(shape, contiguous, weight, bias, eps),
    }?;
    let saved = [contiguous, weight, bias, &moments];
    let residual = with_residual.then_some(contiguous);
    attach_group_norm_backward(GroupNormSilu(shape), norm, x, residual, output, &saved)
}

/// The sizes of x.
#[derive(Clone, Copy)]
struct Shape {
    images: usize,
    groups: usize,
    group_channels: usize,
    /// Elements of a channel.
    pixels: usize,
}

impl Shape {
    fn new(x: &Tensor, groups: usize) -> Self {
        let size = x.size();
        let [images, channels] = [size[0], size[1]].map(|n| n as usize);
        assert!(groups > 0 && channels % groups == 0, "{channels} channels in {groups} groups");
        Self { images, groups, group_channels: channels / groups, pixels: x.numel() / (images * channels) }
    }

    /// The number of groups of all images.
    fn all_groups(&self) -> usize {
        self.images * self.groups
    }

    /// The elements of the `i`-th of all groups.
    fn elements(&self, i: usize) -> Range<usize> {
        let length = self.group_channels * self.pixels;
        length * i..length * (i + 1)
    }

    /// The channels of the `i`-th of all groups, in weight and bias.
    fn channels(&self, i: usize) -> Range<usize> {
        let first = i % self.groups * self.group_channels;
        first..first + self.group_channels
    }
}

/// Returns the output, and mean and reciprocal standard deviation of each group of each image: [N
/// groups, 2], f32.
fn forward<T: Element>(
    shape: Shape,
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    eps: f64,
) -> Result<(Tensor, Tensor), Error> {
    let (weight, bias) = (to_f32_vec(weight)?, to_f32_vec(bias)?);
    let mut output = empty_contiguous_like(x)?;
    let mut moments = guard(|| Tensor::empty([shape.all_groups() as i64, 2], (Kind::Float, x.device())))?;
    let input = as_slice::<T>(x);
    let outputs = DisjointSlices::new(as_mut_slice::<T>(&mut output));
    let all_moments = DisjointSlices::new(as_mut_slice::<f32>(&mut moments));
    parallel_for(c"tidemill::group_norm_silu", shape.all_groups(), |range| {
        for i in range {
            let (weight, bias) = (&weight[shape.channels(i)], &bias[shape.channels(i)]);
            let x = &input[shape.elements(i)];
            // SAFETY: each group of each image is in one range.
            let (output, moments) =
                unsafe { (outputs.get_mut(shape.elements(i)), all_moments.get_mut(2 * i..2 * i + 2)) };
            let group = ForwardGroup { x, weight, bias, eps: eps as f32, output };
            moments.copy_from_slice(&run_vectorised(group));
        }
    })?;
    Ok((output, moments))
}

struct ForwardGroup<'a, T> {
    x: &'a [T],
    weight: &'a [f32],
    bias: &'a [f32],
    eps: f32,
    output: &'a mut [T],
}

impl<T: Element> NullaryFnOnce for ForwardGroup<'_, T> {
    type Output = [f32; 2];

    /// Writes the output, and returns mean and reciprocal standard deviation.
    #[inline(always)]
    fn call(self) -> [f32; 2] {
        let Self { x, weight, bias, eps, output } = self;
        let pixels = x.len() / weight.len();
        let [mean, rstd] = compute_moments(x, pixels, eps);
        for (channel, (x, output)) in x.chunks_exact(pixels).zip(output.chunks_exact_mut(pixels)).enumerate()
        {
            let scale = rstd * weight[channel];
            let shift = bias[channel] - mean * scale;
            for (output, x) in output.iter_mut().zip(x) {
                let z = x.to_f32() * scale + shift;
                *output = T::from_f32(z * sigmoid(z));
            }
        }
        [mean, rstd]
    }
}

/// Mean and reciprocal standard deviation. The variance is that of differences to the mean. Chunks
/// are summed in f32, and their sums in f64.
#[inline(always)]
fn compute_moments<T: Element>(x: &[T], chunk: usize, eps: f32) -> [f32; 2] {
    let (mut total, mut squares) = (0f64, 0f64);
    for x in x.chunks(chunk) {
        total += f64::from(sum(x, |x| x));
    }
    let mean = (total / x.len() as f64) as f32;
    for x in x.chunks(chunk) {
        squares += f64::from(sum(x, |x| (x - mean) * (x - mean)));
    }
    [mean, ((squares / x.len() as f64) as f32 + eps).sqrt().recip()]
}

struct GroupNormSilu(Shape);

impl Backward for GroupNormSilu {
    fn backward(&self, saved: &[Tensor], output_grads: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let [x, weight, bias, moments] = saved else { unreachable!("four tensors are saved") };
        let output_grads = guard(|| {
            output_grads.iter().map(|grad| grad.to_kind(x.kind()).contiguous()).collect::<Vec<_>>()
        })?;
        let weights = [to_f32_vec(weight)?, to_f32_vec(bias)?];
        let (x_grad, channel_sums) = match x.kind() {
            Kind::Float => backward::<f32>(self.0, x, &weights, moments, &output_grads),
            _ => backward::<Bf16>(self.0, x, &weights, moments, &output_grads),
        }?;
        guard(|| {
            let sums = channel_sums.sum_dim_intlist([0i64].as_slice(), false, Kind::Float);
            let column = |like: &Tensor, i| sums.select(1, i).contiguous().to_kind(like.kind());
            vec![x_grad, column(weight, 0), column(bias, 1)]
        })
    }
}

/// Computes the gradient of x from the gradients of the output and, if there is one, of the
/// residual. Also returns the gradients of weight and bias for each image and channel: [N, C, 2],
/// f32.
fn backward<T: Element>(
    shape: Shape,
    x: &Tensor,
    [weight, bias]: &[Vec<f32>; 2],
    moments: &Tensor,
    output_grads: &[Tensor],
) -> Result<(Tensor, Tensor), Error> {
    let mut x_grad = empty_contiguous_like(x)?;
    let size = [shape.images, shape.groups * shape.group_channels, 2].map(|n| n as i64);
    let mut channel_sums = guard(|| Tensor::empty(size, (Kind::Float, x.device())))?;
    let (input, moments) = (as_slice::<T>(x), as_slice::<f32>(moments));
    let (grads, residual_grads) = (as_slice::<T>(&output_grads[0]), output_grads.get(1).map(as_slice::<T>));
    let x_grads = DisjointSlices::new(as_mut_slice::<T>(&mut x_grad));
    let all_sums = DisjointSlices::new(as_mut_slice::<f32>(&mut channel_sums));
    parallel_for(c"tidemill::group_norm_silu_backward", shape.all_groups(), |range| {
        let mut z_grad = vec![0f32; shape.group_channels * shape.pixels];
        for i in range {
            let elements = shape.elements(i);
            let sums = 2 * shape.group_channels * i..2 * shape.group_channels * (i + 1);
            // SAFETY: each group of each image is in one range.
            let (x_grad, channel_sums) =
                unsafe { (x_grads.get_mut(elements.clone()), all_sums.get_mut(sums)) };
            run_vectorised(BackwardGroup {
                x: &input[elements.clone()],
                grad: &grads[elements.clone()],
                residual_grad: residual_grads.map(|grads| &grads[elements]),
                weight: &weight[shape.channels(i)],
                bias: &bias[shape.channels(i)],
                moments: [moments[2 * i], moments[2 * i + 1]],
                z_grad: &mut z_grad,
                x_grad,
                channel_sums,
            });
        }
    })?;
    Ok((x_grad, channel_sums))
}

struct BackwardGroup<'a, T> {
    x: &'a [T],
    grad: &'a [T],
    residual_grad: Option<&'a [T]>,
    weight: &'a [f32],
    bias: &'a [f32],
    moments: [f32; 2],
    /// Room for the gradient of z.
    z_grad: &'a mut [f32],
    x_grad: &'a mut [T],
    channel_sums: &'a mut [f32],
}

impl<T: Element> NullaryFnOnce for BackwardGroup<'_, T> {
    type Output = ();

    /// With n = (x - mean) rstd, z = weight n + bias and d the gradient of z: the gradients of
    /// weight and bias are the sums of d n and d, and the gradient of x is rstd (d weight - mean(d
    /// weight) - n mean(d weight n)).
    #[inline(always)]
    fn call(self) {
        let Self { x, grad, residual_grad, weight, bias, moments, z_grad, x_grad, channel_sums } = self;
        let [mean, rstd] = moments;
        let pixels = x.len() / weight.len();
        let normalised = |x: f32| (x - mean) * rstd;
        let (mut sum_dwn, mut sum_dw) = (0f32, 0f32);
        let inputs = x.chunks_exact(pixels).zip(grad.chunks_exact(pixels));
        for (channel, (z_grad, (x, grad))) in z_grad.chunks_exact_mut(pixels).zip(inputs).enumerate() {
            let (weight, bias) = (weight[channel], bias[channel]);
            for ((d, x), grad) in z_grad.iter_mut().zip(x).zip(grad) {
                *d = grad.to_f32() * silu_derivative(normalised(x.to_f32()) * weight + bias);
            }
            let weight_grad = sum_of_pairs(z_grad, x, |d, x| d * normalised(x));
            let bias_grad = sum(z_grad, |d| d);
            channel_sums[2 * channel] = weight_grad;
            channel_sums[2 * channel + 1] = bias_grad;
            sum_dwn += weight_grad * weight;
            sum_dw += bias_grad * weight;
        }
        let (mean_dwn, mean_dw) = (sum_dwn / x.len() as f32, sum_dw / x.len() as f32);
        let norm_grad =
            |d: f32, x: f32, weight: f32| rstd * (d * weight - mean_dw - normalised(x) * mean_dwn);
        for (channel, (x_grad, weight)) in x_grad.chunks_exact_mut(pixels).zip(weight).enumerate() {
            let elements = channel * pixels..(channel + 1) * pixels;
            let inputs = x[elements.clone()].iter().zip(&z_grad[elements.clone()]);
            match residual_grad {
                None => {
                    for (x_grad, (x, d)) in x_grad.iter_mut().zip(inputs) {
                        *x_grad = T::from_f32(norm_grad(*d, x.to_f32(), *weight));
                    }
                }
                Some(residual_grad) => {
                    let inputs = inputs.zip(&residual_grad[elements]);
                    for (x_grad, ((x, d), residual_grad)) in x_grad.iter_mut().zip(inputs) {
                        *x_grad = T::from_f32(residual_grad.to_f32() + norm_grad(*d, x.to_f32(), *weight));
                    }
                }
            }
        }
    }
}

/// The derivative of z sigmoid(z).
#[inline(always)]
fn silu_derivative(z: f32) -> f32 {
    let s = sigmoid(z);
    s * (1.0 + z * (1.0 - s))
}
