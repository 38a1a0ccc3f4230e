//! A scene: one object on a background, with every free choice spelled out, and how scenes are drawn by lot.

use rand::Rng;
use rand::seq::IndexedRandom;

use crate::config::Combinations;
use crate::vocabulary::{Colour, Place, Shape, Size, is_held_out};

/// Everything that shapes the picture. Lengths are shares of the side of the picture's centre square.
#[derive(Clone, Debug, PartialEq)]
pub struct Scene {
    /// The object's size, as its caption says it.
    pub size: Size,
    /// Its colour, as its caption says it.
    pub colour: Colour,
    /// Its outline.
    pub shape: Shape,
    /// Its place, as its caption says it.
    pub place: Place,
    /// Its exact colour, sRGB.
    pub rgb: [u8; 3],
    /// Its exact radius.
    pub radius: f32,
    /// Its exact centre.
    pub center: (f32, f32),
    /// Its rotation in radians, clockwise.
    pub angle: f32,
    /// The background's tones, sRGB: it fades from the first to the second.
    pub background: [[u8; 3]; 2],
    /// Direction of the fade, in radians.
    pub background_angle: f32,
}

impl Scene {
    /// The scene of a caption without any jitter, on light grey.
    pub fn plain(size: Size, colour: Colour, shape: Shape, place: Place) -> Self {
        Self {
            size,
            colour,
            shape,
            place,
            rgb: colour.rgb(),
            radius: size.radius(),
            center: place.center(),
            angle: 0.0,
            background: [[224; 3]; 2],
            background_angle: 0.0,
        }
    }
}

/// Draws a scene by lot; every pair of colour and shape among the `combinations` is equally likely.
pub fn random_scene(combinations: Combinations, rng: &mut impl Rng) -> Scene {
    let (colour, shape) = loop {
        let (colour, shape) = (pick(rng, Colour::ALL), pick(rng, Shape::ALL));
        if is_held_out(colour, shape) == (combinations == Combinations::HeldOut) {
            break (colour, shape);
        }
    };
    let plain = Scene::plain(pick(rng, Size::ALL), colour, shape, pick(rng, Place::ALL));
    let mut shift = || rng.random_range(-0.015..=0.015);
    let center = (plain.center.0 + shift(), plain.center.1 + shift());
    Scene {
        rgb: jitter(rng, plain.rgb, 10),
        radius: plain.radius * rng.random_range(0.94..=1.06),
        center,
        angle: rng.random_range(-6f32..=6.0).to_radians(),
        background: background(rng),
        background_angle: rng.random_range(0.0..std::f32::consts::TAU),
        ..plain
    }
}

/// Two near-by light, almost neutral tones.
fn background(rng: &mut impl Rng) -> [[u8; 3]; 2] {
    let grey = [rng.random_range(176..=240); 3];
    let first = jitter(rng, grey, 5);
    let step = rng.random_range(-12..=12);
    [first, first.map(|c| shifted(c, step))]
}

fn jitter(rng: &mut impl Rng, rgb: [u8; 3], by: i16) -> [u8; 3] {
    rgb.map(|c| shifted(c, rng.random_range(-by..=by)))
}

fn shifted(channel: u8, by: i16) -> u8 {
    // The clamp keeps the value in range for the cast.
    (i16::from(channel) + by).clamp(0, 255) as u8
}

/// One of a non-empty list of values, each equally likely.
pub(crate) fn pick<T: Copy>(rng: &mut impl Rng, values: &[T]) -> T {
    values.choose(rng).copied().unwrap_or(values[0])
}
