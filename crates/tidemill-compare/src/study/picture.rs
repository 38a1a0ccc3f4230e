//! Pictures as they are stored: all of one size and one encoding, so that nothing but their content
//! tells them apart.

use std::io::Cursor;

use image::imageops::{FilterType, crop_imm, resize};
use image::{ImageFormat, RgbImage};
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::error::{Error, Result};

/// Tiles per side that [`damage`] shuffles.
const TILES: u32 = 8;

/// The centre square of a picture, at `side` pixels.
pub fn fit_to_square(picture: &RgbImage, side: u32) -> RgbImage {
    let (width, height) = picture.dimensions();
    if (width, height) == (side, side) {
        return picture.clone();
    }
    let shorter = width.min(height);
    let square =
        crop_imm(picture, (width - shorter) / 2, (height - shorter) / 2, shorter, shorter).to_image();
    resize(&square, side, side, FilterType::Lanczos3)
}

/// A picture as lossless WebP without metadata.
///
/// # Errors
/// If it cannot be encoded.
pub fn encode(picture: &RgbImage) -> Result<Vec<u8>> {
    let mut bytes = Cursor::new(Vec::new());
    let written = picture.write_to(&mut bytes, ImageFormat::WebP);
    written.map_err(|e| Error::Picture { name: "(encoding)".into(), problem: e.to_string() })?;
    Ok(bytes.into_inner())
}

/// The picture with its tiles shuffled and with noise: worse in every way, whatever it shows. For
/// attention checks.
pub fn damage(picture: &RgbImage, seed: u64) -> RgbImage {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let (width, height) = picture.dimensions();
    let (tile_width, tile_height) = ((width / TILES).max(1), (height / TILES).max(1));
    let mut order: Vec<u32> = (0..TILES * TILES).collect();
    order.shuffle(&mut random);
    RgbImage::from_fn(width, height, |x, y| {
        let (column, row) = ((x / tile_width).min(TILES - 1), (y / tile_height).min(TILES - 1));
        let source = order[(row * TILES + column) as usize];
        let x = (source % TILES) * tile_width + x % tile_width;
        let y = (source / TILES) * tile_height + y % tile_height;
        let mut pixel = *picture.get_pixel(x.min(width - 1), y.min(height - 1));
        pixel.0 = pixel.0.map(|value| value.saturating_add_signed(random.random_range(-60..=60)));
        pixel
    })
}

#[cfg(test)]
mod tests {
    use image::Rgb;

    use super::*;

    fn gradient(width: u32, height: u32) -> RgbImage {
        RgbImage::from_fn(width, height, |x, y| Rgb([(x * 3 % 256) as u8, (y * 5 % 256) as u8, 90]))
    }

    #[test]
    fn encoded_pictures_have_no_metadata_and_lose_nothing() {
        let picture = gradient(48, 48);
        let bytes = encode(&picture).unwrap();
        assert_eq!(image::load_from_memory(&bytes).unwrap().to_rgb8(), picture);
        // A lossless picture and nothing else: RIFF, its size, WEBP, VP8L.
        assert_eq!((&bytes[..4], &bytes[8..16]), (&b"RIFF"[..], &b"WEBPVP8L"[..]));
        let chunk = u32::from_le_bytes([bytes[16], bytes[17], bytes[18], bytes[19]]) as usize;
        assert_eq!(bytes.len(), 20 + chunk.next_multiple_of(2));
    }

    #[test]
    fn pictures_are_cropped_to_the_centre_square() {
        assert_eq!(fit_to_square(&gradient(40, 40), 40), gradient(40, 40));
        assert_eq!(fit_to_square(&gradient(90, 50), 64).dimensions(), (64, 64));
    }

    #[test]
    fn damaged_pictures_differ_by_seed() {
        for side in [3, 40, 64] {
            let picture = gradient(side, side);
            let damaged = damage(&picture, 1);
            assert_eq!(damaged.dimensions(), picture.dimensions());
            assert_ne!(damaged, picture);
            assert_ne!(damaged, damage(&picture, 2));
        }
    }
}
