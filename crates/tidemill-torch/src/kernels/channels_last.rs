//! Group normalisation and SiLU on the CPU of images that lie channels-last, [N, H, W, C], where no gradients are wanted. In tiles of
//! pixels, with numbers of all channels side by side, as often as it takes to fill the widest registers.

use std::ops::Range;

use pulp::NullaryFnOnce;
use tch::{Kind, Tensor};

use super::element::{Bf16, Element};
use super::math::sigmoid;
use super::{GroupNorm, elements, elements_mut, values, vectorised};
use crate::parallel::{Parts, parallel};
use crate::{Error, guard};

/// Elements of a tile, about: few enough to stay in the nearest caches.
const TILE: usize = 1 << 13;
/// Numbers side by side, at least.
const WIDTH: usize = 64;

/// The norm with SiLU of x [N, H, W, C], contiguous, in f32 or bf16.
pub fn group_norm_silu(norm: GroupNorm<'_>, x: &Tensor) -> Result<Tensor, Error> {
    let GroupNorm { weight, bias, groups, eps, .. } = norm;
    let form = Form::of(x, groups as usize);
    match x.kind() {
        Kind::Float => forward::<f32>(form, x, weight, bias, eps),
        _ => forward::<Bf16>(form, x, weight, bias, eps),
    }
}

/// How the elements of x lie.
#[derive(Clone, Copy)]
struct Form {
    images: usize,
    pixels: usize,
    channels: usize,
    groups: usize,
}

impl Form {
    fn of(x: &Tensor, groups: usize) -> Self {
        let size = x.size();
        let [images, height, width, channels] = [0, 1, 2, 3].map(|i| size[i] as usize);
        assert!(groups > 0 && channels.is_multiple_of(groups), "{channels} channels in {groups} groups");
        Self { images, pixels: height * width, channels, groups }
    }

    /// Channels of a group.
    fn group(&self) -> usize {
        self.channels / self.groups
    }

    /// Elements of an image.
    fn image(&self) -> usize {
        self.pixels * self.channels
    }

    /// Elements of a tile; the last of an image may have fewer.
    fn tile(&self) -> usize {
        (TILE / self.channels).clamp(1, self.pixels) * self.channels
    }

    /// Tiles of an image.
    fn tiles(&self) -> usize {
        self.image().div_ceil(self.tile())
    }

    /// The image of a tile, and the tile's elements.
    fn place(&self, tile: usize) -> (usize, Range<usize>) {
        let (image, start) = (tile / self.tiles(), tile % self.tiles() * self.tile());
        let end = (start + self.tile()).min(self.image());
        (image, image * self.image() + start..image * self.image() + end)
    }

    /// A number of each channel, side by side.
    fn side_by_side(&self, of: impl Fn(usize) -> f32) -> Vec<f32> {
        let channels: Vec<f32> = (0..self.channels).map(of).collect();
        let times = WIDTH.div_ceil(self.channels);
        channels.repeat(times)
    }
}

fn forward<T: Element>(
    form: Form,
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    eps: f64,
) -> Result<Tensor, Error> {
    let (weight, bias) = (values(weight)?, values(bias)?);
    let (input, all) = (elements::<T>(x), form.images * form.tiles());
    let mut of_tiles = vec![[0f32; 2]; all * form.groups];
    let parts = Parts::new(&mut of_tiles);
    parallel(c"tidemill::group_norm_silu", all, |some| {
        for i in some {
            // SAFETY: each tile is taken once.
            let found = unsafe { parts.get(i * form.groups..(i + 1) * form.groups) };
            vectorised(TileMoments { x: &input[form.place(i).1], form, found });
        }
    })?;
    let of_images = of_tiles.chunks_exact(form.tiles() * form.groups);
    let lines: Vec<_> = of_images.map(|of_tiles| line(form, of_tiles, &weight, &bias, eps)).collect();
    let mut output = guard(|| x.empty_like())?;
    let parts = Parts::new(elements_mut::<T>(&mut output));
    parallel(c"tidemill::group_norm_silu", all, |some| {
        for i in some {
            let (image, tile) = form.place(i);
            let [scale, shift] = &lines[image];
            // SAFETY: each tile is taken once.
            let output = unsafe { parts.get(tile.clone()) };
            vectorised(Apply { x: &input[tile], scale, shift, output });
        }
    })?;
    Ok(output)
}

/// Mean of each group of a tile, and the sum of squared differences to it.
struct TileMoments<'a, T> {
    x: &'a [T],
    form: Form,
    found: &'a mut [[f32; 2]],
}

impl<T: Element> NullaryFnOnce for TileMoments<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { x, form, found } = self;
        let count = (x.len() / form.groups) as f32;
        let mut sums = form.side_by_side(|_| 0.0);
        for x in x.chunks(sums.len()) {
            for (sum, x) in sums.iter_mut().zip(x) {
                *sum += x.get();
            }
        }
        add_up(form, &sums, |group, sum| found[group][0] += sum / count);
        let means = form.side_by_side(|channel| found[channel / form.group()][0]);
        sums.fill(0.0);
        for x in x.chunks(sums.len()) {
            for ((sum, x), mean) in sums.iter_mut().zip(x).zip(&means) {
                let difference = x.get() - mean;
                *sum += difference * difference;
            }
        }
        add_up(form, &sums, |group, sum| found[group][1] += sum);
    }
}

/// Adds each number of those side by side to its group.
#[inline(always)]
fn add_up(form: Form, side_by_side: &[f32], mut add: impl FnMut(usize, f32)) {
    for numbers in side_by_side.chunks_exact(form.channels) {
        for (group, numbers) in numbers.chunks_exact(form.group()).enumerate() {
            add(group, numbers.iter().sum());
        }
    }
}

/// What each element of an image is multiplied by, and what is then added to it, side by side, from what its tiles have. Moments are
/// put together as by Chan, Golub and LeVeque (1979).
fn line(form: Form, of_tiles: &[[f32; 2]], weight: &[f32], bias: &[f32], eps: f64) -> [Vec<f32>; 2] {
    let all = (form.image() / form.groups) as f64;
    let tiles = of_tiles.chunks_exact(form.groups).enumerate();
    // With the elements of a group in each.
    let tiles = tiles.map(|(tile, found)| (found, (form.place(tile).1.len() / form.groups) as f64));
    let (mut means, mut variances) = (vec![0f64; form.groups], vec![0f64; form.groups]);
    for (found, count) in tiles.clone() {
        for (mean, [of_tile, _]) in means.iter_mut().zip(found) {
            *mean += count / all * f64::from(*of_tile);
        }
    }
    for (found, count) in tiles {
        for ((variance, mean), [of_tile, squares]) in variances.iter_mut().zip(&means).zip(found) {
            *variance += (f64::from(*squares) + count * (f64::from(*of_tile) - mean).powi(2)) / all;
        }
    }
    let rstds: Vec<f32> = variances.iter().map(|variance| (variance + eps).sqrt().recip() as f32).collect();
    let scale = |channel: usize| rstds[channel / form.group()] * weight[channel];
    let shift = |channel: usize| bias[channel] - means[channel / form.group()] as f32 * scale(channel);
    [form.side_by_side(scale), form.side_by_side(shift)]
}

struct Apply<'a, T> {
    x: &'a [T],
    scale: &'a [f32],
    shift: &'a [f32],
    output: &'a mut [T],
}

impl<T: Element> NullaryFnOnce for Apply<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { x, scale, shift, output } = self;
        for (x, output) in x.chunks(scale.len()).zip(output.chunks_mut(scale.len())) {
            for (((output, x), scale), shift) in output.iter_mut().zip(x).zip(scale).zip(shift) {
                let z = x.get() * scale + shift;
                *output = T::of(z * sigmoid(z));
            }
        }
    }
}
