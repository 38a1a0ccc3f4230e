//! The image decoder: for any bytes, it returns an image of the size that the header announces, or
//! an error, and allocates no more than its bounds allow.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidemill_data::decode::{self, IccHandling, Rendering, Rgb8, Scale};

/// Larger images are only probed: decoding them would take time without finding more.
const PIXELS: u64 = 1 << 20;

fuzz_target!(init: tidemill_fuzz::allow_caught_panics(), |bytes: &[u8]| {
    let Ok(info) = decode::probe(bytes) else {
        assert!(decode::decode(bytes).is_err());
        return;
    };
    if u64::from(info.width) * u64::from(info.height) > PIXELS {
        return;
    }
    if let Ok(image) = decode::decode(bytes) {
        assert_eq!((image.width, image.height), (info.width, info.height));
        assert_eq!(image.pixels.len(), 3 * image.width as usize * image.height as usize);
    }
    let half = Scale::smallest_for([(2, 1)]);
    let rendering = Rendering { icc: IccHandling::Convert, ..Rendering::default() };
    let Ok(image) = decode::decode_strip(bytes, half, None, rendering).map(|strip| strip.image) else { return };
    assert_eq!(image.pixels.len(), 3 * image.width as usize * image.height as usize);
    // Columns that are decoded alone have the pixels of the full image.
    let wanted = image.width / 3..image.width.div_ceil(2);
    let Ok(strip) = decode::decode_strip(bytes, half, Some(wanted.clone()), rendering) else { panic!("{wanted:?}") };
    assert!(strip.left <= wanted.start && wanted.end <= strip.left + strip.image.width);
    let columns = |image: &Rgb8, left: u32| -> Vec<u8> {
        let rows = image.pixels.chunks(3 * image.width as usize);
        let columns = 3 * (wanted.start - left) as usize..3 * (wanted.end - left) as usize;
        rows.flat_map(|row| &row[columns.clone()]).copied().collect()
    };
    assert_eq!(columns(&strip.image, strip.left), columns(&image, 0));
});
