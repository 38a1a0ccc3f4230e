//! Aspect buckets (multi-aspect training): the sizes of about R x R pixels that images of many
//! aspects are resized to, and the bucket of an image.

use std::cmp::{Ordering, Reverse};

/// The default step between the sides of buckets: SDXL's 64, and less for resolutions at which 64
/// would leave only two or three buckets.
pub fn default_step(resolution: u32) -> u32 {
    if resolution >= 256 { 64 } else { ((resolution + 16) / 32 * 8).max(8) }
}

/// Lists the buckets, width and height: sides are multiples of `step`, the long side is at most
/// `max_aspect` times the short one, and the area is 90 to 100 % of R x R; and the square of R.
/// From tall to wide.
///
/// At R = 1024 these are SDXL's buckets (Podell et al., "SDXL: Improving Latent Diffusion Models
/// for High-Resolution Image Synthesis", arXiv 2307.01952, appendix I) and one more: the paper's
/// table has 704 x 1344 in one orientation only, Stability AI's own list of ratios
/// (`SD_XL_BASE_RATIOS` in its `generative-models`) has both.
pub fn list_buckets(resolution: u32, step: u32, max_aspect: f64) -> Vec<(u32, u32)> {
    let square = u64::from(resolution).pow(2);
    let longest = (f64::from(resolution) * max_aspect.sqrt()).ceil() as u32;
    let sides = || (step..=longest).step_by(step.max(1) as usize);
    let fits = |&(width, height): &(u32, u32)| {
        let pixels = u64::from(width) * u64::from(height);
        let (short, long) = (width.min(height), width.max(height));
        let balanced = f64::from(long) <= max_aspect * f64::from(short);
        pixels <= square && 10 * pixels >= 9 * square && balanced && width != height
    };
    let mut sizes: Vec<(u32, u32)> =
        sides().flat_map(|width| sides().map(move |height| (width, height))).filter(fits).collect();
    sizes.push((resolution, resolution));
    sizes.sort_unstable_by_key(|&(width, height)| (width, Reverse(height)));
    sizes
}

/// The bucket whose aspect is nearest to the image's, by the ratio of the two. Of equally near
/// buckets the larger one, then the first. `None` if there are no buckets.
pub fn nearest_bucket(buckets: &[(u32, u32)], image: (u32, u32)) -> Option<(u32, u32)> {
    let compare = |a: &(u32, u32), b: &(u32, u32)| {
        let ((a_more, a_less), (b_more, b_less)) = (aspect_distance(*a, image), aspect_distance(*b, image));
        (a_more * b_less).cmp(&(b_more * a_less)).then_with(|| compare_area(*a, *b))
    };
    buckets.iter().copied().min_by(compare)
}

/// The distance of two aspects as a fraction of at least 1. It is exact, so that ties are detected.
fn aspect_distance(a: (u32, u32), b: (u32, u32)) -> (u128, u128) {
    let (x, y) = (u128::from(a.0) * u128::from(b.1), u128::from(a.1) * u128::from(b.0));
    (x.max(y), x.min(y))
}

/// Orders larger buckets first.
fn compare_area(a: (u32, u32), b: (u32, u32)) -> Ordering {
    let pixels = |size: (u32, u32)| u64::from(size.0) * u64::from(size.1);
    pixels(b).cmp(&pixels(a))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Appendix I of the SDXL paper: heights with their widths.
    const SDXL: [(u32, &[u32]); 25] = [
        (512, &[2048, 1984, 1920, 1856]),
        (576, &[1792, 1728, 1664]),
        (640, &[1600, 1536]),
        (704, &[1472, 1408, 1344]),
        (768, &[1344, 1280]),
        (832, &[1216, 1152]),
        (896, &[1152, 1088]),
        (960, &[1088, 1024]),
        (1024, &[1024, 960]),
        (1088, &[960, 896]),
        (1152, &[896, 832]),
        (1216, &[832]),
        (1280, &[768]),
        (1344, &[768]),
        (1408, &[704]),
        (1472, &[704]),
        (1536, &[640]),
        (1600, &[640]),
        (1664, &[576]),
        (1728, &[576]),
        (1792, &[576]),
        (1856, &[512]),
        (1920, &[512]),
        (1984, &[512]),
        (2048, &[512]),
    ];

    #[test]
    fn buckets_at_1024_are_those_of_sdxl() {
        let mut published: Vec<(u32, u32)> = SDXL
            .iter()
            .flat_map(|(height, widths)| widths.iter().map(move |width| (*width, *height)))
            .collect();
        assert_eq!(published.len(), 40);
        // The mirror of the widest 704, which the paper's table lacks.
        published.push((704, 1344));
        published.sort_unstable_by_key(|&(width, height)| (width, Reverse(height)));
        assert_eq!(list_buckets(1024, default_step(1024), 4.0), published);
    }

    #[test]
    fn buckets_include_the_square_and_all_mirrors() {
        for resolution in (8..=1024).step_by(8) {
            let sizes = list_buckets(resolution, default_step(resolution), 4.0);
            assert!(sizes.contains(&(resolution, resolution)), "{resolution}");
            assert!(sizes.iter().all(|&(width, height)| sizes.contains(&(height, width))), "{resolution}");
            assert!(sizes.iter().all(|&(width, height)| width % 8 == 0 && height % 8 == 0), "{resolution}");
        }
        assert_eq!(list_buckets(256, 64, 4.0), [(128, 512), (192, 320), (256, 256), (320, 192), (512, 128)]);
        assert_eq!(list_buckets(256, 64, 1.0), [(256, 256)]);
        assert_eq!([8, 32, 40, 64, 128, 248, 256, 1024].map(default_step), [8, 8, 8, 16, 32, 64, 64, 64]);
    }

    #[test]
    fn nearest_bucket_is_by_ratio_and_ties_go_to_the_larger() {
        let buckets = [(64, 64), (128, 32), (32, 128), (120, 30)];
        for (image, expected) in [
            ((500, 400), (64, 64)),
            // 2 : 1 is the geometric mean of 1 : 1 and 4 : 1; both have as many pixels, so the
            // first of the list.
            ((200, 100), (64, 64)),
            ((201, 100), (128, 32)),
            ((100, 201), (32, 128)),
            ((1, 100_000_000), (32, 128)),
        ] {
            assert_eq!(nearest_bucket(&buckets, image), Some(expected), "{image:?}");
        }
        assert_eq!(nearest_bucket(&[(120, 30), (128, 32)], (9, 1)), Some((128, 32)));
        assert_eq!(nearest_bucket(&[], (1, 1)), None);
    }
}
