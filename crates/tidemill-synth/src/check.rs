//! What does an image show? By geometry alone: the object is what differs from the border's colour, its colour is the
//! nearest reference in a perceptual space, and its shape the outline that overlaps it best at equal area. No model has a
//! say in it, so it can judge one. Soft edges, small artefacts and noise are forgiven; doubt is answered with `None`.

use serde::Serialize;
use tiny_skia::{FillRule, Mask, Transform};

use crate::geometry::{outline, unit_area};
use crate::picture::RgbView;
use crate::segment::{Blob, distance, oklab, segment};
use crate::vocabulary::{Colour, Place, Shape, Size};

/// What an image shows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// The object's colour.
    pub colour: Colour,
    /// Its outline.
    pub shape: Shape,
    /// Its size.
    pub size: Size,
    /// Its place.
    pub place: Place,
    /// How well the outline fits: intersection over union, in (0, 1].
    pub fit: f32,
}

/// Colours further than this from every reference (distance in Oklab) have no name here.
const NAMELESS: f32 = 0.16;

/// Outlines that overlap less than this are no shape of ours.
const MIN_FIT: f32 = 0.70;

/// How much the best outline must lead the second.
const MIN_LEAD: f32 = 0.01;

/// Says what a (roughly square) image shows, or `None` if it has no single, clear object of this world.
pub fn check(image: &RgbView<'_>) -> Option<Finding> {
    let blob = segment(image)?;
    let colour = name_colour(&blob)?;
    let (shape, fit) = name_shape(&blob)?;
    let side = image.width().min(image.height()) as f32;
    let radius = (blob.area / unit_area(shape)).sqrt() / side;
    let offset = |length: usize| (length as f32 - side) / 2.0;
    let center =
        ((blob.center.0 - offset(image.width())) / side, (blob.center.1 - offset(image.height())) / side);
    Some(Finding { colour, shape, size: name_size(radius), place: name_place(center)?, fit })
}

fn name_colour(blob: &Blob) -> Option<Colour> {
    let away = |colour: &Colour| distance(blob.lab, oklab(colour.rgb().map(f32::from)));
    let nearest = nearest(Colour::ALL, away)?;
    (away(&nearest) < NAMELESS).then_some(nearest)
}

fn name_size(radius: f32) -> Size {
    let border = (Size::Small.radius() * Size::Large.radius()).sqrt();
    if radius < border { Size::Small } else { Size::Large }
}

fn name_place(center: (f32, f32)) -> Option<Place> {
    nearest(Place::ALL, |place| {
        let (x, y) = place.center();
        // Ordered as distances are.
        (x - center.0).powi(2) + (y - center.1).powi(2)
    })
}

/// The outline with the best overlap, if it is good and clearly the best.
fn name_shape(blob: &Blob) -> Option<(Shape, f32)> {
    let mut fits: Vec<(Shape, f32)> =
        Shape::ALL.iter().map(|&shape| (shape, best_fit(blob, shape))).collect();
    fits.sort_by(|a, b| b.1.total_cmp(&a.1));
    let (best, second) = (fits[0], fits[1]);
    (best.1 >= MIN_FIT && best.1 - second.1 >= MIN_LEAD).then_some(best)
}

/// Best overlap over small rotations and two degrees of blur, at the blob's own area and centre of area.
fn best_fit(blob: &Blob, shape: Shape) -> f32 {
    let radius = (blob.area / unit_area(shape)).sqrt();
    (-3..=3)
        .filter_map(|step| {
            let path = outline(shape, blob.center, radius, (4.0 * step as f32).to_radians())?;
            let mut mask = Mask::new(blob.width as u32, blob.height as u32)?;
            mask.fill_path(&path, FillRule::Winding, true, Transform::identity());
            let sharp: Vec<f32> = mask.data().iter().map(|&a| f32::from(a) / 255.0).collect();
            let soft = blur(&blur(&sharp, blob.width), blob.width);
            Some(overlap(&blob.cover, &sharp).max(overlap(&blob.cover, &soft)))
        })
        .fold(0.0, f32::max)
}

/// Weights (1, 2, 1) / 4 along both axes. What lies outside counts as nothing, as objects keep off the border.
fn blur(mask: &[f32], width: usize) -> Vec<f32> {
    let along = |mask: &[f32], step: usize| -> Vec<f32> {
        let at = |i: Option<usize>| i.and_then(|i| mask.get(i)).copied().unwrap_or(0.0);
        (0..mask.len())
            .map(|i| (at(i.checked_sub(step)) + 2.0 * mask[i] + at(Some(i + step))) / 4.0)
            .collect()
    };
    along(&along(mask, 1), width)
}

/// Intersection over union of two soft masks.
fn overlap(cover: &[f32], mask: &[f32]) -> f32 {
    let (mut both, mut either) = (0.0, 0.0);
    for (&a, &b) in cover.iter().zip(mask) {
        both += a.min(b);
        either += a.max(b);
    }
    if either > 0.0 { both / either } else { 0.0 }
}

fn nearest<T: Copy>(all: &[T], distance: impl Fn(&T) -> f32) -> Option<T> {
    all.iter().copied().min_by(|a, b| distance(a).total_cmp(&distance(b)))
}
