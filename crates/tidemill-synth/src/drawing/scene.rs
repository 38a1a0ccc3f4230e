//! A scene: one object on a background, with all its parameters; and random scenes.

use rand::Rng;
use rand::seq::IndexedRandom;
use serde::{Deserialize, Serialize};

use crate::drawing::vocabulary::{Colour, Place, Shape, Size, is_held_out};

/// The pairs of colour and shape that may be drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Combinations {
    /// All pairs except the held-out ones: training data.
    #[default]
    Trained,
    /// Only the held-out pairs: data that measures generalization.
    HeldOut,
}

/// All parameters of an image. Lengths are fractions of the side of the image's centre square.
#[derive(Clone, Debug, PartialEq)]
pub struct Scene {
    /// The object's size, as the caption names it.
    pub size: Size,
    /// The object's colour, as the caption names it.
    pub colour: Colour,
    /// The object's outline.
    pub shape: Shape,
    /// The object's place, as the caption names it.
    pub place: Place,
    /// The object's exact colour, in sRGB.
    pub rgb: [u8; 3],
    /// The object's exact radius.
    pub radius: f32,
    /// The object's exact centre (x, y).
    pub center: (f32, f32),
    /// The object's rotation in radians, clockwise.
    pub angle: f32,
    /// The first and last colour of the background's gradient, in sRGB.
    pub background: [[u8; 3]; 2],
    /// The direction of the gradient, in radians.
    pub background_angle: f32,
}

impl Scene {
    /// The scene of a caption without random variation, on light grey.
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

/// Chooses a random scene. Every pair of colour and shape in `combinations` is equally likely.
pub fn random_scene(combinations: Combinations, rng: &mut impl Rng) -> Scene {
    let (colour, shape) = loop {
        let (colour, shape) = (choose(rng, Colour::ALL), choose(rng, Shape::ALL));
        if is_held_out(colour, shape) == (combinations == Combinations::HeldOut) {
            break (colour, shape);
        }
    };
    let plain = Scene::plain(choose(rng, Size::ALL), colour, shape, choose(rng, Place::ALL));
    let mut shift = || rng.random_range(-0.015..=0.015);
    let center = (plain.center.0 + shift(), plain.center.1 + shift());
    Scene {
        rgb: jitter(rng, plain.rgb, 10),
        radius: plain.radius * rng.random_range(0.94..=1.06),
        center,
        angle: rng.random_range(-6f32..=6.0).to_radians(),
        background: random_background(rng),
        background_angle: rng.random_range(0.0..std::f32::consts::TAU),
        ..plain
    }
}

/// Two similar light colours that are almost neutral.
fn random_background(rng: &mut impl Rng) -> [[u8; 3]; 2] {
    let grey = [rng.random_range(176..=240); 3];
    let first = jitter(rng, grey, 5);
    let step = rng.random_range(-12..=12);
    [first, first.map(|c| shift_channel(c, step))]
}

/// Shifts each channel by a random amount of at most `max`.
fn jitter(rng: &mut impl Rng, rgb: [u8; 3], max: i16) -> [u8; 3] {
    rgb.map(|c| shift_channel(c, rng.random_range(-max..=max)))
}

fn shift_channel(channel: u8, amount: i16) -> u8 {
    // The clamp keeps the value in range for the cast.
    (i16::from(channel) + amount).clamp(0, 255) as u8
}

/// A random value of a non-empty list; all are equally likely.
pub(crate) fn choose<T: Copy>(rng: &mut impl Rng, values: &[T]) -> T {
    values.choose(rng).copied().unwrap_or(values[0])
}
