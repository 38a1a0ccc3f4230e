//! Group normalisation (Wu and He, 2018), and SiLU.

use std::ops::Range;

use pulp::NullaryFnOnce;
use tch::{Kind, Tensor};

use super::element::{Bf16, Element};
use super::math::sigmoid;
use super::{channels_last, elements, elements_mut, empty_like, gpu, has_kernels, images};
use super::{sum, sum_of_pairs, values, vectorised, wants_gradients};
use crate::operation::{Backward, differentiable};
use crate::parallel::{Parts, parallel};
use crate::{Error, guard};

/// Group normalisation of x [N, C, ...] in groups of C / `groups` channels, and with `silu` the SiLU of that.
///
/// What it gives is in the dtype of x, with arithmetic in f32; where there is no kernel, in the dtype of `weight`, and with as much in
/// f32 as libtorch has. On a CPU there are kernels with SiLU only.
#[derive(Clone, Copy, Debug)]
pub struct GroupNorm<'a> {
    /// [C].
    pub weight: &'a Tensor,
    /// [C], in the dtype of `weight`.
    pub bias: &'a Tensor,
    /// How many groups.
    pub groups: i64,
    /// What is added to variances.
    pub eps: f64,
    /// Whether SiLU follows.
    pub silu: bool,
}

impl GroupNorm<'_> {
    /// The normalised x.
    ///
    /// # Errors
    /// If memory does not suffice.
    pub fn of(self, x: &Tensor) -> Result<Tensor, Error> {
        Ok(self.pass(x, false)?.1)
    }

    /// x, to go past the norm with, and the normalised x. Both have gradients, whose sum is x's: it is made where that of the norm is,
    /// without a pass over memory of its own.
    ///
    /// # Errors
    /// If memory does not suffice.
    pub fn beside(self, x: &Tensor) -> Result<(Tensor, Tensor), Error> {
        self.pass(x, true)
    }

    fn pass(self, x: &Tensor, beside: bool) -> Result<(Tensor, Tensor), Error> {
        if let Some(outputs) = gpu::group_norm(self, x, beside) {
            return outputs;
        }
        if !has_kernels(x) || !self.silu {
            return Ok((x.shallow_clone(), guard(|| self.by_libtorch(x))?));
        }
        if x.dim() == 4 && !x.is_contiguous() && !wants_gradients() {
            let last = guard(|| channels_last(x))?;
            let output = channels_last::group_norm_silu(self, &last)?;
            return Ok((x.shallow_clone(), guard(|| images(&output))?));
        }
        self.on_cpu(x, beside)
    }

    pub(super) fn by_libtorch(self, x: &Tensor) -> Tensor {
        let Self { weight, bias, groups, eps, silu } = self;
        let input = x.to_kind(weight.kind());
        let output = input.group_norm(groups, Some(weight), Some(bias), eps, true).to_kind(x.kind());
        if silu { output.silu() } else { output }
    }

    fn on_cpu(self, x: &Tensor, beside: bool) -> Result<(Tensor, Tensor), Error> {
        let Self { weight, bias, groups, eps, .. } = self;
        let contiguous = &guard(|| x.contiguous())?;
        let form = Form::of(contiguous, groups as usize);
        let (output, moments) = match x.kind() {
            Kind::Float => forward::<f32>(form, contiguous, weight, bias, eps),
            _ => forward::<Bf16>(form, contiguous, weight, bias, eps),
        }?;
        let kept = [contiguous, weight, bias, &moments];
        finish(GroupNormSilu(form), self, x, beside.then_some(contiguous), output, &kept)
    }
}

/// Has the backward pass know of an output, and of x beside it, if `past` is that.
pub(super) fn finish<B: Backward>(
    operation: B,
    norm: GroupNorm<'_>,
    x: &Tensor,
    past: Option<&Tensor>,
    output: Tensor,
    kept: &[&Tensor],
) -> Result<(Tensor, Tensor), Error> {
    let inputs = [x, norm.weight, norm.bias];
    let Some(past) = past else {
        differentiable(operation, &[&output], &inputs, kept)?;
        return Ok((x.shallow_clone(), output));
    };
    let past = guard(|| past.detach())?;
    differentiable(operation, &[&output, &past], &inputs, kept)?;
    Ok((past, output))
}

/// How the elements of x lie.
#[derive(Clone, Copy)]
struct Form {
    images: usize,
    groups: usize,
    /// Channels of a group.
    channels: usize,
    /// Elements of a channel.
    pixels: usize,
}

impl Form {
    fn of(x: &Tensor, groups: usize) -> Self {
        let size = x.size();
        let [images, channels] = [size[0], size[1]].map(|n| n as usize);
        assert!(groups > 0 && channels % groups == 0, "{channels} channels in {groups} groups");
        Self { images, groups, channels: channels / groups, pixels: x.numel() / (images * channels) }
    }

    /// Elements of a group of an image.
    fn group(&self) -> usize {
        self.channels * self.pixels
    }

    /// Those of the `i`-th of all groups.
    fn elements(&self, i: usize) -> Range<usize> {
        self.group() * i..self.group() * (i + 1)
    }
}

/// The output, and of each group of each image mean and reciprocal standard deviation: [N groups, 2], f32.
fn forward<T: Element>(
    form: Form,
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    eps: f64,
) -> Result<(Tensor, Tensor), Error> {
    let (weight, bias) = (values(weight)?, values(bias)?);
    let mut output = empty_like(x)?;
    let all = form.images * form.groups;
    let mut moments = guard(|| Tensor::empty([all as i64, 2], (Kind::Float, x.device())))?;
    let input = elements::<T>(x);
    let outputs = Parts::new(elements_mut::<T>(&mut output));
    let found = Parts::new(elements_mut::<f32>(&mut moments));
    parallel(c"tidemill::group_norm_silu", all, |some| {
        for i in some {
            let first = i % form.groups * form.channels;
            let (weight, bias) = (&weight[first..][..form.channels], &bias[first..][..form.channels]);
            let x = &input[form.elements(i)];
            // SAFETY: each group of each image is taken once.
            let (output, found) = unsafe { (outputs.get(form.elements(i)), found.get(2 * i..2 * i + 2)) };
            found.copy_from_slice(&vectorised(ForwardGroup { x, weight, bias, eps: eps as f32, output }));
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

    #[inline(always)]
    fn call(self) -> [f32; 2] {
        let Self { x, weight, bias, eps, output } = self;
        let pixels = x.len() / weight.len();
        let [mean, rstd] = moments(x, pixels, eps);
        for (channel, (x, output)) in x.chunks_exact(pixels).zip(output.chunks_exact_mut(pixels)).enumerate()
        {
            let scale = rstd * weight[channel];
            let shift = bias[channel] - mean * scale;
            for (output, x) in output.iter_mut().zip(x) {
                let z = x.get() * scale + shift;
                *output = T::of(z * sigmoid(z));
            }
        }
        [mean, rstd]
    }
}

/// Mean and reciprocal standard deviation, the latter from differences to the former; sums of stretches are f32.
#[inline(always)]
fn moments<T: Element>(x: &[T], stretch: usize, eps: f32) -> [f32; 2] {
    let (mut all, mut squares) = (0f64, 0f64);
    for x in x.chunks(stretch) {
        all += f64::from(sum(x, |x| x));
    }
    let mean = (all / x.len() as f64) as f32;
    for x in x.chunks(stretch) {
        squares += f64::from(sum(x, |x| (x - mean) * (x - mean)));
    }
    [mean, ((squares / x.len() as f64) as f32 + eps).sqrt().recip()]
}

struct GroupNormSilu(Form);

impl Backward for GroupNormSilu {
    fn backward(&self, kept: &[Tensor], grads: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let [x, weight, bias, moments] = kept else { unreachable!("as many are kept") };
        let grads =
            guard(|| grads.iter().map(|grad| grad.to_kind(x.kind()).contiguous()).collect::<Vec<_>>())?;
        let weights = [values(weight)?, values(bias)?];
        let (to_x, sums) = match x.kind() {
            Kind::Float => backward::<f32>(self.0, x, &weights, moments, &grads),
            _ => backward::<Bf16>(self.0, x, &weights, moments, &grads),
        }?;
        guard(|| {
            let sums = sums.sum_dim_intlist([0i64].as_slice(), false, Kind::Float);
            let of = |weight: &Tensor, i| sums.select(1, i).contiguous().to_kind(weight.kind());
            vec![to_x, of(weight, 0), of(bias, 1)]
        })
    }
}

/// The gradient of x, from that of the output and, if there is one, that of x beside it; and for each image and channel those of weight
/// and bias: [N, C, 2], f32.
fn backward<T: Element>(
    form: Form,
    x: &Tensor,
    [weight, bias]: &[Vec<f32>; 2],
    moments: &Tensor,
    grads: &[Tensor],
) -> Result<(Tensor, Tensor), Error> {
    let mut to_x = empty_like(x)?;
    let all = form.images * form.groups;
    let size = [form.images, form.groups * form.channels, 2].map(|n| n as i64);
    let mut to_weights = guard(|| Tensor::empty(size, (Kind::Float, x.device())))?;
    let (input, moments) = (elements::<T>(x), elements::<f32>(moments));
    let (grads, past) = (elements::<T>(&grads[0]), grads.get(1).map(elements::<T>));
    let outputs = Parts::new(elements_mut::<T>(&mut to_x));
    let found = Parts::new(elements_mut::<f32>(&mut to_weights));
    parallel(c"tidemill::group_norm_silu_backward", all, |some| {
        let mut slopes = vec![0f32; form.group()];
        for i in some {
            let first = i % form.groups * form.channels;
            let (group, weights) = (form.elements(i), 2 * form.channels * i..2 * form.channels * (i + 1));
            // SAFETY: each group of each image is taken once.
            let (to_x, to_weights) = unsafe { (outputs.get(group.clone()), found.get(weights)) };
            vectorised(BackwardGroup {
                x: &input[group.clone()],
                grad: &grads[group.clone()],
                past: past.map(|past| &past[group]),
                weight: &weight[first..][..form.channels],
                bias: &bias[first..][..form.channels],
                moments: [moments[2 * i], moments[2 * i + 1]],
                slopes: &mut slopes,
                to_x,
                to_weights,
            });
        }
    })?;
    Ok((to_x, to_weights))
}

struct BackwardGroup<'a, T> {
    x: &'a [T],
    grad: &'a [T],
    /// What comes to x past the norm.
    past: Option<&'a [T]>,
    weight: &'a [f32],
    bias: &'a [f32],
    moments: [f32; 2],
    /// Room for the gradient of z.
    slopes: &'a mut [f32],
    to_x: &'a mut [T],
    to_weights: &'a mut [f32],
}

impl<T: Element> NullaryFnOnce for BackwardGroup<'_, T> {
    type Output = ();

    /// With n = (x - mean) rstd, z = weight n + bias and d the gradient of z: the gradients of weight and bias are the sums of d n
    /// and d, and that of x is rstd (d weight - mean(d weight) - n mean(d weight n)).
    #[inline(always)]
    fn call(self) {
        let Self { x, grad, past, weight, bias, moments: [mean, rstd], slopes, to_x, to_weights } = self;
        let pixels = x.len() / weight.len();
        let normalised = |x: f32| (x - mean) * rstd;
        let (mut along, mut across) = (0f32, 0f32);
        let inputs = x.chunks_exact(pixels).zip(grad.chunks_exact(pixels));
        for (channel, (slopes, (x, grad))) in slopes.chunks_exact_mut(pixels).zip(inputs).enumerate() {
            let (weight, bias) = (weight[channel], bias[channel]);
            for ((d, x), grad) in slopes.iter_mut().zip(x).zip(grad) {
                *d = grad.get() * silu_slope(normalised(x.get()) * weight + bias);
            }
            let to_weight = sum_of_pairs(slopes, x, |d, x| d * normalised(x));
            let to_bias = sum(slopes, |d| d);
            to_weights[2 * channel] = to_weight;
            to_weights[2 * channel + 1] = to_bias;
            along += to_weight * weight;
            across += to_bias * weight;
        }
        let (along, across) = (along / x.len() as f32, across / x.len() as f32);
        let of_norm = |d: f32, x: f32, weight: f32| rstd * (d * weight - across - normalised(x) * along);
        for (channel, (to_x, weight)) in to_x.chunks_exact_mut(pixels).zip(weight).enumerate() {
            let here = channel * pixels..(channel + 1) * pixels;
            let inputs = x[here.clone()].iter().zip(&slopes[here.clone()]);
            match past {
                None => {
                    for (to_x, (x, d)) in to_x.iter_mut().zip(inputs) {
                        *to_x = T::of(of_norm(*d, x.get(), *weight));
                    }
                }
                Some(past) => {
                    for ((to_x, (x, d)), past) in to_x.iter_mut().zip(inputs).zip(&past[here]) {
                        *to_x = T::of(past.get() + of_norm(*d, x.get(), *weight));
                    }
                }
            }
        }
    }
}

/// The derivative of z sigmoid(z).
#[inline(always)]
fn silu_slope(z: f32) -> f32 {
    let s = sigmoid(z);
    s * (1.0 + z * (1.0 - s))
}
