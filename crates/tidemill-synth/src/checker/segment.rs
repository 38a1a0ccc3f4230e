//! Finds the single object of an image: the pixels that differ from the background. The image's
//! border gives the background's colour.

use crate::checker::oklab::{distance, to_oklab};
use crate::image::RgbView;

/// The segmented object.
pub(crate) struct Blob {
    /// Image width, in pixels.
    pub width: usize,
    /// Image height, in pixels.
    pub height: usize,
    /// Coverage of each pixel, row-major, in [0, 1].
    pub cover: Vec<f32>,
    /// Sum of the coverage, in pixels.
    pub area: f32,
    /// Centroid (x, y), in pixels from the upper left corner.
    pub center: (f32, f32),
    /// The object's colour in Oklab.
    pub lab: [f32; 3],
}

/// A pixel with at least this Oklab distance from the background may belong to an object. The
/// background's gradient spans about 0.04.
const MIN_CONTRAST: f32 = 0.10;

/// Limits of the object's area as a fraction of the image. A small star has 0.035, a large square
/// 0.14.
const AREA_FRACTION: std::ops::Range<f32> = 0.015..0.30;

/// The largest area of a second component, as a fraction of the first one's area.
const MAX_SECOND_FRACTION: f32 = 0.15;

/// Segments the image's object. `None` if there is no object, or more than one.
pub(crate) fn segment_object(image: &RgbView<'_>) -> Option<Blob> {
    let (width, height) = (image.width(), image.height());
    if width < 16 || height < 16 {
        return None;
    }
    let rgb: Vec<[f32; 3]> = image.pixels().map(|p| p.map(f32::from)).collect();
    let lab: Vec<[f32; 3]> = rgb.iter().map(|&p| to_oklab(p)).collect();
    let border: Vec<usize> = (0..width * height).filter(|i| is_border(*i, width, height)).collect();
    let background = median(border.iter().map(|&i| lab[i]))?;

    let is_foreground: Vec<bool> = lab.iter().map(|&p| distance(p, background) > MIN_CONTRAST).collect();
    let foreground_border = border.iter().filter(|&&i| is_foreground[i]).count();
    if 4 * foreground_border > border.len() {
        return None;
    }
    let members = find_single_component(&is_foreground, width)?;
    let core = select_core(&members, &lab, background);
    let (object_lab, object_rgb) =
        (median(core.iter().map(|&i| lab[i]))?, median(core.iter().map(|&i| rgb[i]))?);
    let background_rgb = median(border.iter().map(|&i| rgb[i]))?;

    let mut cover = vec![0.0; width * height];
    for i in add_neighbours(&members, width, height) {
        cover[i] = compute_coverage(rgb[i], background_rgb, object_rgb);
    }
    let area: f32 = cover.iter().sum();
    if !AREA_FRACTION.contains(&(area / (width * height) as f32)) {
        return None;
    }
    let center = compute_centroid(&cover, width, area);
    Some(Blob { width, height, cover, area, center, lab: object_lab })
}

/// Whether a pixel belongs to the outermost two rows or columns.
fn is_border(i: usize, width: usize, height: usize) -> bool {
    let (x, y) = (i % width, i / width);
    x < 2 || y < 2 || x + 2 >= width || y + 2 >= height
}

/// The median of each channel.
fn median(colours: impl Iterator<Item = [f32; 3]> + Clone) -> Option<[f32; 3]> {
    let channel = |c: usize| {
        let mut values: Vec<f32> = colours.clone().map(|p| p[c]).collect();
        let middle = values.len().checked_sub(1)? / 2;
        Some(*values.select_nth_unstable_by(middle, f32::total_cmp).1)
    };
    Some([channel(0)?, channel(1)?, channel(2)?])
}

/// The largest 4-connected component of a mask. `None` if a second one has a similar size.
fn find_single_component(mask: &[bool], width: usize) -> Option<Vec<usize>> {
    let mut unvisited = mask.to_vec();
    let mut components: Vec<Vec<usize>> = Vec::new();
    for start in 0..unvisited.len() {
        if !std::mem::take(&mut unvisited[start]) {
            continue;
        }
        let mut component = vec![start];
        let mut next = 0;
        while let Some(&i) = component.get(next) {
            next += 1;
            for j in neighbours(i, width, unvisited.len() / width) {
                if std::mem::take(&mut unvisited[j]) {
                    component.push(j);
                }
            }
        }
        components.push(component);
    }
    components.sort_by_key(|c| std::cmp::Reverse(c.len()));
    let second = components.get(1).map_or(0, Vec::len) as f32;
    let first = components.into_iter().next()?;
    (second <= MAX_SECOND_FRACTION * first.len() as f32).then_some(first)
}

/// The indices of the 4-connected neighbours of pixel `i`.
fn neighbours(i: usize, width: usize, height: usize) -> impl Iterator<Item = usize> {
    let (x, y) = (i % width, i / width);
    [
        (x > 0).then(|| i - 1),
        (x + 1 < width).then_some(i + 1),
        (y > 0).then(|| i - width),
        (y + 1 < height).then_some(i + width),
    ]
    .into_iter()
    .flatten()
}

/// Adds the ring of pixels around the object, which contains its soft edge.
fn add_neighbours(members: &[usize], width: usize, height: usize) -> Vec<usize> {
    let mut all: Vec<usize> = members.iter().flat_map(|&i| neighbours(i, width, height)).collect();
    all.extend(members);
    all.sort_unstable();
    all.dedup();
    all
}

/// The half of the members that differ most from the background: the object without its blended
/// edge.
fn select_core(members: &[usize], lab: &[[f32; 3]], background: [f32; 3]) -> Vec<usize> {
    let mut core = members.to_vec();
    core.sort_by(|&a, &b| distance(lab[b], background).total_cmp(&distance(lab[a], background)));
    core.truncate(members.len().div_ceil(2));
    core
}

/// How far a pixel's colour lies between the background's (0) and the object's (1).
fn compute_coverage(pixel: [f32; 3], background: [f32; 3], object: [f32; 3]) -> f32 {
    let (mut along, mut squared_length) = (0.0, 0.0);
    for c in 0..3 {
        let delta = object[c] - background[c];
        along += (pixel[c] - background[c]) * delta;
        squared_length += delta * delta;
    }
    (along / squared_length.max(1.0)).clamp(0.0, 1.0)
}

/// The centroid of the coverage, in pixels.
fn compute_centroid(cover: &[f32], width: usize, area: f32) -> (f32, f32) {
    let (mut x, mut y) = (0.0, 0.0);
    for (i, &a) in cover.iter().enumerate() {
        x += a * ((i % width) as f32 + 0.5);
        y += a * ((i / width) as f32 + 0.5);
    }
    (x / area, y / area)
}
