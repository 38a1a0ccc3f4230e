//! Center crop, random crop, bucket crop and horizontal flip. A crop is a rectangle of the original
//! with the aspect of its target size, so one resize does the rest, and nothing is stretched or
//! enlarged.

use crate::decode::Rgb8;
use crate::prepare::aspect_buckets;
use crate::random::index_below;
use crate::resize::Rect;

/// A crop of an image, and the size that it is resized to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResizedCrop {
    /// The crop in pixels of the original.
    pub crop: Rect,
    /// Width and height after the resize.
    pub size: (u32, u32),
}

impl ResizedCrop {
    /// The crop of an image of this size for the target size with the nearest aspect. It is in the
    /// middle (an odd margin leaves the extra pixel right or below), or at the position that the
    /// random number `draw` selects, every offset with the same probability. `None` if the crop
    /// would have to be enlarged.
    pub fn new(image: (u32, u32), sizes: &[(u32, u32)], draw: Option<u64>) -> Option<Self> {
        let size = aspect_buckets::nearest_bucket(sizes, image)?;
        let (width, height) = largest_crop(image, size);
        let offset = |spare: u32| draw.map_or(spare / 2, |draw| index_below(draw, spare + 1));
        let crop = Rect { x: offset(image.0 - width), y: offset(image.1 - height), width, height };
        (width >= size.0 && height >= size.1).then_some(Self { crop, size })
    }

    /// Bytes of the resized pixels.
    pub fn pixel_bytes(&self) -> usize {
        3 * self.size.0 as usize * self.size.1 as usize
    }
}

/// Width and height of the largest rectangle in an image with the aspect of `size`, to the nearest
/// pixel.
fn largest_crop(image: (u32, u32), size: (u32, u32)) -> (u32, u32) {
    let [width, height, w, h] = [image.0, image.1, size.0, size.1].map(u64::from);
    let rounded = |dividend: u64, divisor: u64| ((dividend + divisor / 2) / divisor) as u32;
    if width * h >= height * w { (rounded(height * w, h), image.1) } else { (image.0, rounded(width * h, w)) }
}

/// Mirrors an image left to right.
pub fn flip_horizontally(image: &mut Rgb8) {
    for row in image.pixels.chunks_exact_mut(3 * image.width.max(1) as usize) {
        row.as_chunks_mut::<3>().0.reverse();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn center_crop_is_the_middle_square() {
        let cases = [
            ((500, 375), (62, 0, 375)),
            ((375, 500), (0, 62, 375)),
            ((64, 64), (0, 0, 64)),
            ((9, 8), (0, 0, 8)),
            ((8, 17), (0, 4, 8)),
        ];
        for (image, (x, y, side)) in cases {
            let cut = ResizedCrop::new(image, &[(8, 8)], None).unwrap();
            assert_eq!(cut.crop, Rect { x, y, width: side, height: side });
        }
        assert_eq!(ResizedCrop::new((7, 100), &[(8, 8)], None), None);
    }

    #[test]
    fn image_smaller_than_its_bucket_has_no_crop() {
        let sizes = [(256, 256), (512, 128)];
        assert_eq!(ResizedCrop::new((600, 150), &sizes, None).unwrap().size, (512, 128));
        assert_eq!(ResizedCrop::new((600, 120), &sizes, None), None);
        assert_eq!(ResizedCrop::new((260, 255), &sizes, None), None);
    }

    proptest! {
        /// For every image: the crop lies inside, touches two opposite edges, has the bucket's
        /// aspect to half a pixel, and no other bucket is nearer.
        #[test]
        fn every_image_gets_its_nearest_bucket(
            width in 1u32..20_000, height in 1u32..20_000,
            resolution in prop::sample::select(vec![64u32, 256, 512, 1024]),
            draw in prop::option::of(any::<u64>()),
        ) {
            let sizes = aspect_buckets::list_buckets(resolution, aspect_buckets::default_step(resolution), 4.0);
            let (w, h) = aspect_buckets::nearest_bucket(&sizes, (width, height)).unwrap();
            let distance = |(w, h): (u32, u32)| {
                (f64::from(w) / f64::from(h) * f64::from(height) / f64::from(width)).ln().abs()
            };
            prop_assert!(sizes.iter().all(|&size| distance(size) >= distance((w, h)) - 1e-12));

            let (crop_width, crop_height) = largest_crop((width, height), (w, h));
            prop_assert!(crop_width == width || crop_height == height);
            let ideal_width = f64::from(crop_height) * f64::from(w) / f64::from(h);
            let ideal_height = f64::from(crop_width) * f64::from(h) / f64::from(w);
            let off = (ideal_width - f64::from(crop_width)).abs().min((ideal_height - f64::from(crop_height)).abs());
            prop_assert!(off <= 0.5, "{crop_width}x{crop_height} for {w}x{h}");

            match ResizedCrop::new((width, height), &sizes, draw) {
                Some(ResizedCrop { crop, size }) => {
                    prop_assert_eq!((size, crop.width, crop.height), ((w, h), crop_width, crop_height));
                    prop_assert!(crop.x + crop.width <= width && crop.y + crop.height <= height);
                    prop_assert!(crop.width >= w && crop.height >= h);
                }
                None => prop_assert!(crop_width < w || crop_height < h),
            }
        }

        #[test]
        fn flipping_twice_changes_nothing(width in 1u32..20, height in 1u32..20, seed: u8) {
            let bytes = 3 * width * height;
            let pixels = (0..bytes).map(|i| (i as u8).wrapping_mul(7).wrapping_add(seed)).collect();
            let image = Rgb8 { width, height, pixels };
            let mut mirrored = image.clone();
            flip_horizontally(&mut mirrored);
            let first = |image: &Rgb8, x: u32| image.pixels[3 * x as usize..][..3].to_vec();
            prop_assert_eq!(first(&mirrored, 0), first(&image, width - 1));
            flip_horizontally(&mut mirrored);
            prop_assert_eq!(mirrored, image);
        }
    }
}
