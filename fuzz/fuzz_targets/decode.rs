//! The image decoder: whatever the bytes, it returns an image of the size that the header announces or an error,
//! and allocates no more than its bounds allow.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidemill_data::decode::{self, Scale};

/// Larger images are only probed: they would cost time, not find more.
const PIXELS: u64 = 1 << 20;

fuzz_target!(init: tidemill_fuzz::let_panics_be_caught(), |bytes: &[u8]| {
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
    let half = Scale::reaching([(2, 1)]);
    if let Ok(image) = decode::decode_scaled(bytes, half) {
        assert_eq!(image.pixels.len(), 3 * image.width as usize * image.height as usize);
    }
});
