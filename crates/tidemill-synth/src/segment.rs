//! Finds the one object of an image: the pixels that differ from the background's colour, which the border shows.

use crate::picture::RgbView;

/// An object: how much of each pixel it covers, and what follows from that.
pub(crate) struct Blob {
    /// Image width, in pixels.
    pub width: usize,
    /// Image height, in pixels.
    pub height: usize,
    /// Coverage of each pixel, row-major, in [0, 1].
    pub cover: Vec<f32>,
    /// Sum of the coverage, in pixels.
    pub area: f32,
    /// Centre of area (x, y), in pixels from the upper left corner.
    pub center: (f32, f32),
    /// The object's colour, in Oklab.
    pub lab: [f32; 3],
}

/// A pixel this far from the background (Oklab) may belong to an object. Backgrounds fade by about 0.04.
const STANDS_OUT: f32 = 0.10;

/// An object's share of the image lies within these: a small star has 0.035, a large square 0.14.
const AREA: std::ops::Range<f32> = 0.015..0.30;

/// A second object may have at most this share of the first one's area.
const MAX_SECOND: f32 = 0.15;

/// The image's object, or `None` if there is none, or more than one.
pub(crate) fn segment(image: &RgbView<'_>) -> Option<Blob> {
    let (width, height) = (image.width(), image.height());
    if width < 16 || height < 16 {
        return None;
    }
    let rgb: Vec<[f32; 3]> = image.pixels().map(|p| p.map(f32::from)).collect();
    let lab: Vec<[f32; 3]> = rgb.iter().map(|&p| oklab(p)).collect();
    let border: Vec<usize> = (0..width * height).filter(|i| is_border(*i, width, height)).collect();
    let ground = median(border.iter().map(|&i| lab[i]))?;

    let stands_out: Vec<bool> = lab.iter().map(|&p| distance(p, ground) > STANDS_OUT).collect();
    let loose = border.iter().filter(|&&i| stands_out[i]).count();
    if 4 * loose > border.len() {
        return None;
    }
    let members = single_component(&stands_out, width)?;
    let core = core_of(&members, &lab, ground);
    let (object_lab, object_rgb) =
        (median(core.iter().map(|&i| lab[i]))?, median(core.iter().map(|&i| rgb[i]))?);
    let ground_rgb = median(border.iter().map(|&i| rgb[i]))?;

    let mut cover = vec![0.0; width * height];
    for i in with_neighbours(&members, width, height) {
        cover[i] = coverage(rgb[i], ground_rgb, object_rgb);
    }
    let area: f32 = cover.iter().sum();
    if !AREA.contains(&(area / (width * height) as f32)) {
        return None;
    }
    let center = center_of(&cover, width, area);
    Some(Blob { width, height, cover, area, center, lab: object_lab })
}

/// The outermost two rows and columns.
fn is_border(i: usize, width: usize, height: usize) -> bool {
    let (x, y) = (i % width, i / width);
    x < 2 || y < 2 || x + 2 >= width || y + 2 >= height
}

/// Median of each channel.
fn median(colours: impl Iterator<Item = [f32; 3]> + Clone) -> Option<[f32; 3]> {
    let channel = |c: usize| {
        let mut values: Vec<f32> = colours.clone().map(|p| p[c]).collect();
        let middle = values.len().checked_sub(1)? / 2;
        Some(*values.select_nth_unstable_by(middle, f32::total_cmp).1)
    };
    Some([channel(0)?, channel(1)?, channel(2)?])
}

/// The largest 4-connected component of `set`, unless a second one is of similar size.
fn single_component(set: &[bool], width: usize) -> Option<Vec<usize>> {
    let mut left = set.to_vec();
    let mut components: Vec<Vec<usize>> = Vec::new();
    for start in 0..left.len() {
        if !std::mem::take(&mut left[start]) {
            continue;
        }
        let mut component = vec![start];
        let mut next = 0;
        while let Some(&i) = component.get(next) {
            next += 1;
            for j in neighbours(i, width, left.len() / width) {
                if std::mem::take(&mut left[j]) {
                    component.push(j);
                }
            }
        }
        components.push(component);
    }
    components.sort_by_key(|c| std::cmp::Reverse(c.len()));
    let second = components.get(1).map_or(0, Vec::len) as f32;
    let first = components.into_iter().next()?;
    (second <= MAX_SECOND * first.len() as f32).then_some(first)
}

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

/// The members and the ring around them, where an object's soft edge fades out.
fn with_neighbours(members: &[usize], width: usize, height: usize) -> Vec<usize> {
    let mut all: Vec<usize> = members.iter().flat_map(|&i| neighbours(i, width, height)).collect();
    all.extend(members);
    all.sort_unstable();
    all.dedup();
    all
}

/// The half of the members furthest from the background: the object without its mixed edge pixels.
fn core_of(members: &[usize], lab: &[[f32; 3]], ground: [f32; 3]) -> Vec<usize> {
    let mut core = members.to_vec();
    core.sort_by(|&a, &b| distance(lab[b], ground).total_cmp(&distance(lab[a], ground)));
    core.truncate(members.len().div_ceil(2));
    core
}

/// Where a pixel lies on the way from the background's colour to the object's.
fn coverage(pixel: [f32; 3], ground: [f32; 3], object: [f32; 3]) -> f32 {
    let (mut along, mut length) = (0.0, 0.0);
    for c in 0..3 {
        let way = object[c] - ground[c];
        along += (pixel[c] - ground[c]) * way;
        length += way * way;
    }
    (along / length.max(1.0)).clamp(0.0, 1.0)
}

fn center_of(cover: &[f32], width: usize, area: f32) -> (f32, f32) {
    let (mut x, mut y) = (0.0, 0.0);
    for (i, &a) in cover.iter().enumerate() {
        x += a * ((i % width) as f32 + 0.5);
        y += a * ((i / width) as f32 + 0.5);
    }
    (x / area, y / area)
}

/// Euclidean distance.
pub(crate) fn distance(a: [f32; 3], b: [f32; 3]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f32>().sqrt()
}

/// sRGB in [0, 255] to Oklab (Björn Ottosson, "A perceptual color space for image processing", 2020).
pub(crate) fn oklab(rgb: [f32; 3]) -> [f32; 3] {
    let [r, g, b] = rgb.map(|c| {
        let c = c / 255.0;
        if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) }
    });
    let l = (0.412_221_46 * r + 0.536_332_55 * g + 0.051_445_995 * b).cbrt();
    let m = (0.211_903_5 * r + 0.680_699_5 * g + 0.107_396_96 * b).cbrt();
    let s = (0.088_302_46 * r + 0.281_718_85 * g + 0.629_978_7 * b).cbrt();
    [
        0.210_454_26 * l + 0.793_617_8 * m - 0.004_072_047 * s,
        1.977_998_5 * l - 2.428_592_2 * m + 0.450_593_7 * s,
        0.025_904_037 * l + 0.782_771_77 * m - 0.808_675_77 * s,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::Colour;

    #[test]
    fn oklab_of_the_paper() {
        // White is (1, 0, 0); red is (0.628, 0.225, 0.126).
        assert!(distance(oklab([255.0; 3]), [1.0, 0.0, 0.0]) < 1e-3);
        assert!(distance(oklab([255.0, 0.0, 0.0]), [0.628, 0.225, 0.126]) < 1e-3);
    }

    #[test]
    fn colours_lie_well_apart() {
        let mut least = f32::MAX;
        for (i, a) in Colour::ALL.iter().enumerate() {
            for b in &Colour::ALL[..i] {
                least = least.min(distance(oklab(a.rgb().map(f32::from)), oklab(b.rgb().map(f32::from))));
            }
        }
        println!("least distance between two colours: {least}");
        assert!(least > 0.11);
    }
}
