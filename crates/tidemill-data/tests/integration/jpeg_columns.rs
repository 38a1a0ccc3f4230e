//! Columns of a JPEG that are decoded alone have the same pixels as in the full image, for all
//! codings and scales.

use proptest::prelude::*;
use tidemill_data::decode::{Rendering, Rgb8, Scale, decode_strip};
use turbojpeg::{Compressor, Image, PixelFormat, Subsamp};

/// A JPEG of noise over a gradient, so that every column differs from its neighbours in light and
/// colour.
fn jpeg(
    width: usize,
    height: usize,
    subsampling: Subsamp,
    format: PixelFormat,
    progressive: bool,
) -> Vec<u8> {
    let channels = format.size();
    let pixels = (0..width * height * channels).map(|i| {
        let noise = (i as u32).wrapping_mul(2_654_435_761) >> 25;
        (noise + (i / channels % width) as u32 * 2) as u8
    });
    let pixels: Vec<u8> = pixels.collect();
    let image = Image { pixels: pixels.as_slice(), width, pitch: channels * width, height, format };
    let mut compressor = Compressor::new().unwrap();
    compressor.set_subsamp(subsampling).unwrap();
    compressor.set_quality(80).unwrap();
    compressor.set_progressive(progressive).unwrap();
    compressor.compress_to_vec(image).unwrap()
}

fn columns(image: &Rgb8, from: u32, to: u32) -> Vec<u8> {
    let rows = image.pixels.chunks(3 * image.width as usize);
    rows.flat_map(|row| &row[3 * from as usize..3 * to as usize]).copied().collect()
}

proptest! {
    #[test]
    fn decoded_columns_equal_those_of_the_full_image(
        (width, height) in (1usize..300, 1usize..40),
        subsampling in prop::sample::select(vec![
            Subsamp::None, Subsamp::Sub2x1, Subsamp::Sub2x2, Subsamp::Gray, Subsamp::Sub1x2, Subsamp::Sub4x1,
            Subsamp::Sub1x4,
        ]),
        (inks, progressive) in any::<(bool, bool)>(),
        eighths in prop::sample::select(vec![1u32, 2, 4, 8]),
        (from, to) in (0.0..1.0, 0.0..1.0),
    ) {
        let grey = subsampling == Subsamp::Gray;
        let format = if inks && !grey { PixelFormat::CMYK } else { PixelFormat::RGB };
        let bytes = jpeg(width, height, subsampling, format, progressive);
        let scale = Scale::smallest_for([(8, eighths)]);
        let whole = decode_strip(&bytes, scale, None, Rendering::default()).unwrap().image;
        let place = |share: f64| (share * f64::from(whole.width)) as u32;
        let (from, to) = (place(f64::min(from, to)), place(f64::max(from, to)) + 1);

        let strip = decode_strip(&bytes, scale, Some(from..to), Rendering::default()).unwrap();
        let (left, right) = (strip.left, strip.left + strip.image.width);
        prop_assert_eq!(strip.full_width, whole.width);
        prop_assert!(left <= from && to <= right && right <= whole.width);
        prop_assert!(from - left < 64 && right - to <= 32, "{from}..{to} needs no {left}..{right}");
        prop_assert_eq!(columns(&strip.image, from - left, to - left), columns(&whole, from, to));
    }
}
