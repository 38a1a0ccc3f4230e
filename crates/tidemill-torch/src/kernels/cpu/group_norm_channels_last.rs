//! Group normalisation with SiLU of channels-last images, [N, H, W, C], without gradients.
//! It works in tiles of pixels, and keeps numbers of all channels side by side, repeated until they
//! fill the widest registers.

use std::ops::Range;

use pulp::NullaryFnOnce;
use tch::{Kind, Tensor};

use super::element::{Bf16, Element};
use super::simd::run_vectorised;
use super::tensor_slices::{as_mut_slice, as_slice, to_f32_vec};
use super::vector_math::sigmoid;
use crate::kernels::arguments::GroupNorm;
use crate::threads::{DisjointSlices, parallel_for};
use crate::{Error, guard};

/// Elements of a tile, about: few enough to stay in the nearest caches.
const TILE_ELEMENTS: usize = 1 << 13;
/// The least numbers that are kept side by side.
const MIN_WIDTH: usize = 64;

/// The SiLU of the norm of x [N, H, W, C], contiguous, in f32 or bf16.
///
/// # Errors
/// If memory does not suffice.
pub fn group_norm_silu_channels_last(norm: GroupNorm<'_>, x: &Tensor) -> Result<Tensor, Error> {
    let GroupNorm { weight, bias, groups, eps, .. } = norm;
    let shape = Shape::new(x, groups as usize);
    match x.kind() {
        Kind::Float => forward::<f32>(shape, x, weight, bias, eps),
        _ => forward::<Bf16>(shape, x, weight, bias, eps),
    }
}

/// The sizes of x, and its division into tiles.
#[derive(Clone, Copy)]
struct Shape {
    images: usize,
    pixels: usize,
    channels: usize,
    groups: usize,
}

impl Shape {
    fn new(x: &Tensor, groups: usize) -> Self {
        let size = x.size();
        let [images, height, width, channels] = [0, 1, 2, 3].map(|i| size[i] as usize);
        assert!(groups > 0 && channels.is_multiple_of(groups), "{channels} channels in {groups} groups");
        Self { images, pixels: height * width, channels, groups }
    }

    fn group_channels(&self) -> usize {
        self.channels / self.groups
    }

    fn image_elements(&self) -> usize {
        self.pixels * self.channels
    }

    /// Elements of a tile; the last tile of an image may have fewer.
    fn tile_elements(&self) -> usize {
        (TILE_ELEMENTS / self.channels).clamp(1, self.pixels) * self.channels
    }

    fn tiles_per_image(&self) -> usize {
        self.image_elements().div_ceil(self.tile_elements())
    }

    /// The image of the `tile`-th of all tiles, and the tile's elements.
    fn locate_tile(&self, tile: usize) -> (usize, Range<usize>) {
        let (image, tile) = (tile / self.tiles_per_image(), tile % self.tiles_per_image());
        let start = tile * self.tile_elements();
        let end = (start + self.tile_elements()).min(self.image_elements());
        (image, image * self.image_elements() + start..image * self.image_elements() + end)
    }

    /// A number of each channel, repeated until there are at least [`MIN_WIDTH`] numbers.
    fn repeat_per_channel(&self, value: impl Fn(usize) -> f32) -> Vec<f32> {
        let channels: Vec<f32> = (0..self.channels).map(value).collect();
        let times = MIN_WIDTH.div_ceil(self.channels);
        channels.repeat(times)
    }
}

fn forward<T: Element>(
    shape: Shape,
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    eps: f64,
) -> Result<Tensor, Error> {
    let (weight, bias) = (to_f32_vec(weight)?, to_f32_vec(bias)?);
    let (input, tiles) = (as_slice::<T>(x), shape.images * shape.tiles_per_image());
    let mut tile_moments = vec![[0f32; 2]; tiles * shape.groups];
    let outputs = DisjointSlices::new(&mut tile_moments);
    parallel_for(c"tidemill::group_norm_silu", tiles, |range| {
        for i in range {
            // SAFETY: each tile is in one range.
            let moments = unsafe { outputs.get_mut(i * shape.groups..(i + 1) * shape.groups) };
            run_vectorised(TileMoments { x: &input[shape.locate_tile(i).1], shape, moments });
        }
    })?;
    let per_image = tile_moments.chunks_exact(shape.tiles_per_image() * shape.groups);
    let scales_and_shifts: Vec<_> =
        per_image.map(|tile_moments| scale_and_shift(shape, tile_moments, &weight, &bias, eps)).collect();
    let mut output = guard(|| x.empty_like())?;
    let outputs = DisjointSlices::new(as_mut_slice::<T>(&mut output));
    parallel_for(c"tidemill::group_norm_silu", tiles, |range| {
        for i in range {
            let (image, elements) = shape.locate_tile(i);
            let [scale, shift] = &scales_and_shifts[image];
            // SAFETY: each tile is in one range.
            let output = unsafe { outputs.get_mut(elements.clone()) };
            run_vectorised(NormaliseTile { x: &input[elements], scale, shift, output });
        }
    })?;
    Ok(output)
}

/// Computes the mean of each group of a tile, and the sum of squared differences to it.
struct TileMoments<'a, T> {
    x: &'a [T],
    shape: Shape,
    moments: &'a mut [[f32; 2]],
}

impl<T: Element> NullaryFnOnce for TileMoments<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { x, shape, moments } = self;
        let count = (x.len() / shape.groups) as f32;
        let mut sums = shape.repeat_per_channel(|_| 0.0);
        for x in x.chunks(sums.len()) {
            for (sum, x) in sums.iter_mut().zip(x) {
                *sum += x.to_f32();
            }
        }
        add_to_groups(shape, &sums, |group, sum| moments[group][0] += sum / count);
        let means = shape.repeat_per_channel(|channel| moments[channel / shape.group_channels()][0]);
        sums.fill(0.0);
        for x in x.chunks(sums.len()) {
            for ((sum, x), mean) in sums.iter_mut().zip(x).zip(&means) {
                let difference = x.to_f32() - mean;
                *sum += difference * difference;
            }
        }
        add_to_groups(shape, &sums, |group, sum| moments[group][1] += sum);
    }
}

/// Adds repeated numbers per channel to their groups.
#[inline(always)]
fn add_to_groups(shape: Shape, repeated: &[f32], mut add: impl FnMut(usize, f32)) {
    for channels in repeated.chunks_exact(shape.channels) {
        for (group, numbers) in channels.chunks_exact(shape.group_channels()).enumerate() {
            add(group, numbers.iter().sum());
        }
    }
}

/// From the moments of an image's tiles, the factor and the summand of each element of the image,
/// repeated per channel. Moments of tiles are combined as by Chan, Golub and LeVeque (1979).
fn scale_and_shift(
    shape: Shape,
    tile_moments: &[[f32; 2]],
    weight: &[f32],
    bias: &[f32],
    eps: f64,
) -> [Vec<f32>; 2] {
    let group_elements = (shape.image_elements() / shape.groups) as f64;
    let tiles = tile_moments.chunks_exact(shape.groups).enumerate();
    // Each with its elements per group.
    let tiles =
        tiles.map(|(tile, moments)| (moments, (shape.locate_tile(tile).1.len() / shape.groups) as f64));
    let (mut means, mut variances) = (vec![0f64; shape.groups], vec![0f64; shape.groups]);
    for (moments, count) in tiles.clone() {
        for (mean, [tile_mean, _]) in means.iter_mut().zip(moments) {
            *mean += count / group_elements * f64::from(*tile_mean);
        }
    }
    for (moments, count) in tiles {
        for ((variance, mean), [tile_mean, squares]) in variances.iter_mut().zip(&means).zip(moments) {
            *variance +=
                (f64::from(*squares) + count * (f64::from(*tile_mean) - mean).powi(2)) / group_elements;
        }
    }
    let rstds: Vec<f32> = variances.iter().map(|variance| (variance + eps).sqrt().recip() as f32).collect();
    let scale = |channel: usize| rstds[channel / shape.group_channels()] * weight[channel];
    let shift =
        |channel: usize| bias[channel] - means[channel / shape.group_channels()] as f32 * scale(channel);
    [shape.repeat_per_channel(scale), shape.repeat_per_channel(shift)]
}

struct NormaliseTile<'a, T> {
    x: &'a [T],
    scale: &'a [f32],
    shift: &'a [f32],
    output: &'a mut [T],
}

impl<T: Element> NullaryFnOnce for NormaliseTile<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { x, scale, shift, output } = self;
        for (x, output) in x.chunks(scale.len()).zip(output.chunks_mut(scale.len())) {
            for (((output, x), scale), shift) in output.iter_mut().zip(x).zip(scale).zip(shift) {
                let z = x.to_f32() * scale + shift;
                *output = T::from_f32(z * sigmoid(z));
            }
        }
    }
}
