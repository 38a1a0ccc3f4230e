//! Tells what an image shows, by geometry alone. The object is what differs from the border's
//! colour. Its colour is the nearest reference in a perceptual colour space. Its shape is the
//! outline that overlaps it best at equal area. No model takes part, so the checker can judge
//! models. It tolerates soft edges, small artefacts and noise, and returns `None` when in doubt.

use serde::Serialize;
use tiny_skia::{FillRule, Mask, Transform};

use crate::checker::oklab::{distance, to_oklab};
use crate::checker::segment::{Blob, segment_object};
use crate::drawing::outline::{build_outline, unit_area};
use crate::drawing::vocabulary::{Colour, Place, Shape, Size};
use crate::image::RgbView;

/// The object that an image shows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Detection {
    /// The object's colour.
    pub colour: Colour,
    /// The object's outline.
    pub shape: Shape,
    /// The object's size.
    pub size: Size,
    /// The object's place.
    pub place: Place,
    /// Intersection over union of the object and its outline, in (0, 1].
    pub fit: f32,
}

/// The largest Oklab distance between an object's colour and its reference.
const MAX_COLOUR_DISTANCE: f32 = 0.16;

/// The smallest overlap (intersection over union) at which a shape is recognized.
const MIN_FIT: f32 = 0.70;

/// The smallest difference in overlap between the best outline and the second best.
const MIN_LEAD: f32 = 0.01;

/// Detects the object of a roughly square image. `None` if the image has no single, clear object of
/// this vocabulary.
pub fn detect_object(image: &RgbView<'_>) -> Option<Detection> {
    let blob = segment_object(image)?;
    let colour = classify_colour(&blob)?;
    let (shape, fit) = classify_shape(&blob)?;
    let side = image.width().min(image.height()) as f32;
    let radius = (blob.area / unit_area(shape)).sqrt() / side;
    let offset = |length: usize| (length as f32 - side) / 2.0;
    let center =
        ((blob.center.0 - offset(image.width())) / side, (blob.center.1 - offset(image.height())) / side);
    Some(Detection { colour, shape, size: classify_size(radius), place: classify_place(center)?, fit })
}

fn classify_colour(blob: &Blob) -> Option<Colour> {
    let distance_to = |colour: &Colour| distance(blob.lab, to_oklab(colour.rgb().map(f32::from)));
    let nearest = find_nearest(Colour::ALL, distance_to)?;
    (distance_to(&nearest) < MAX_COLOUR_DISTANCE).then_some(nearest)
}

fn classify_size(radius: f32) -> Size {
    let border = (Size::Small.radius() * Size::Large.radius()).sqrt();
    if radius < border { Size::Small } else { Size::Large }
}

fn classify_place(center: (f32, f32)) -> Option<Place> {
    find_nearest(Place::ALL, |place| {
        let (x, y) = place.center();
        // The squared distance has the same order as the distance.
        (x - center.0).powi(2) + (y - center.1).powi(2)
    })
}

/// The shape with the best overlap, if the overlap is large and clearly the best.
fn classify_shape(blob: &Blob) -> Option<(Shape, f32)> {
    let mut fits: Vec<(Shape, f32)> =
        Shape::ALL.iter().map(|&shape| (shape, compute_best_fit(blob, shape))).collect();
    fits.sort_by(|a, b| b.1.total_cmp(&a.1));
    let (best, second) = (fits[0], fits[1]);
    (best.1 >= MIN_FIT && best.1 - second.1 >= MIN_LEAD).then_some(best)
}

/// The best overlap over small rotations and two degrees of blur, at the blob's area and centroid.
fn compute_best_fit(blob: &Blob, shape: Shape) -> f32 {
    let radius = (blob.area / unit_area(shape)).sqrt();
    (-3..=3)
        .filter_map(|step| {
            let path = build_outline(shape, blob.center, radius, (4.0 * step as f32).to_radians())?;
            let mut mask = Mask::new(blob.width as u32, blob.height as u32)?;
            mask.fill_path(&path, FillRule::Winding, true, Transform::identity());
            let sharp: Vec<f32> = mask.data().iter().map(|&a| f32::from(a) / 255.0).collect();
            let soft = blur(&blur(&sharp, blob.width), blob.width);
            Some(compute_overlap(&blob.cover, &sharp).max(compute_overlap(&blob.cover, &soft)))
        })
        .fold(0.0, f32::max)
}

/// Blurs with weights (1, 2, 1) / 4 along both axes. Pixels outside of the image count as 0,
/// because objects do not touch the border.
fn blur(mask: &[f32], width: usize) -> Vec<f32> {
    let blur_axis = |mask: &[f32], step: usize| -> Vec<f32> {
        let value = |i: Option<usize>| i.and_then(|i| mask.get(i)).copied().unwrap_or(0.0);
        (0..mask.len())
            .map(|i| (value(i.checked_sub(step)) + 2.0 * mask[i] + value(Some(i + step))) / 4.0)
            .collect()
    };
    blur_axis(&blur_axis(mask, 1), width)
}

/// The intersection over union of two soft masks.
fn compute_overlap(cover: &[f32], mask: &[f32]) -> f32 {
    let (mut intersection, mut union) = (0.0, 0.0);
    for (&a, &b) in cover.iter().zip(mask) {
        intersection += a.min(b);
        union += a.max(b);
    }
    if union > 0.0 { intersection / union } else { 0.0 }
}

fn find_nearest<T: Copy>(all: &[T], distance: impl Fn(&T) -> f32) -> Option<T> {
    all.iter().copied().min_by(|a, b| distance(a).total_cmp(&distance(b)))
}
