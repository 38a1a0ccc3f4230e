//! The checker recognizes drawn scenes, also blurred and compressed ones, and finds nothing in
//! noise and blank images.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tidemill_synth::{
    Colour, Combinations, Place, RgbImage, RgbView, Scene, Shape, Size, detect_object, draw_scene,
    random_scene,
};
use tidemill_testing::seed;
use turbojpeg::{Image, PixelFormat, Subsamp};

const SIDE: usize = 64;

/// A box blur with weights (w, 1 - 2 w, w) along both axes.
fn blur(image: &RgbImage, w: f32) -> RgbImage {
    let mut rgb: Vec<f32> = image.rgb.iter().copied().map(f32::from).collect();
    for (step, length) in [(3, image.width), (3 * image.width, image.height)] {
        let before = rgb.clone();
        for (i, value) in rgb.iter_mut().enumerate() {
            let position = i / step % length;
            let left = before[if position == 0 { i } else { i - step }];
            let right = before[if position + 1 == length { i } else { i + step }];
            *value = w * (left + right) + (1.0 - 2.0 * w) * before[i];
        }
    }
    RgbImage { rgb: rgb.into_iter().map(|v| v.round() as u8).collect(), ..*image }
}

fn recompress(image: &RgbImage, quality: i32) -> RgbImage {
    let pixels = Image {
        pixels: image.rgb.as_slice(),
        width: image.width,
        pitch: 3 * image.width,
        height: image.height,
        format: PixelFormat::RGB,
    };
    let jpeg = turbojpeg::compress(pixels, quality, Subsamp::Sub2x2).unwrap();
    let decoded = turbojpeg::decompress(&jpeg, PixelFormat::RGB).unwrap();
    RgbImage { rgb: decoded.pixels, ..*image }
}

/// The fraction of random scenes with colour and shape detected correctly, and the fraction with
/// size and place detected correctly.
fn measure_accuracy(
    rng: &mut ChaCha8Rng,
    combinations: Combinations,
    degrade: impl Fn(RgbImage) -> RgbImage,
) -> (f64, f64) {
    let total = 500;
    let (mut classified, mut located) = (0, 0);
    for _ in 0..total {
        let scene = random_scene(combinations, rng);
        let image = degrade(draw_scene(&scene, SIDE as u32, SIDE as u32).unwrap());
        let Some(found) = detect_object(&image.view()) else { continue };
        classified += usize::from((found.colour, found.shape) == (scene.colour, scene.shape));
        located += usize::from((found.size, found.place) == (scene.size, scene.place));
    }
    (classified as f64 / total as f64, located as f64 / total as f64)
}

#[test]
fn drawn_scenes_are_recognized() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    for combinations in [Combinations::Trained, Combinations::HeldOut] {
        let clean = measure_accuracy(&mut rng, combinations, |p| p);
        let degraded = measure_accuracy(&mut rng, combinations, |p| recompress(&blur(&p, 0.2), 85));
        let badly_degraded =
            measure_accuracy(&mut rng, combinations, |p| recompress(&blur(&blur(&p, 0.25), 0.25), 75));
        println!(
            "{combinations:?}: (colour and shape, size and place) {clean:?}, degraded {degraded:?}, badly degraded {badly_degraded:?}"
        );
        assert!(clean.0 >= 0.995 && clean.1 >= 0.99);
        assert!(degraded.0 >= 0.99 && degraded.1 >= 0.98);
        assert!(badly_degraded.0 >= 0.97);
    }
}

#[test]
fn every_combination_is_told_from_all_others() {
    for &colour in Colour::ALL {
        for &shape in Shape::ALL {
            for &size in Size::ALL {
                let image = draw_scene(&Scene::plain(size, colour, shape, Place::Center), 64, 64).unwrap();
                let found = detect_object(&image.view()).unwrap();
                assert_eq!((found.size, found.colour, found.shape), (size, colour, shape));
            }
        }
    }
}

/// Whether the checker detects an object in square RGB pixels.
fn has_object(rgb: &[u8]) -> bool {
    detect_object(&RgbView::new(SIDE, SIDE, rgb).unwrap()).is_some()
}

#[test]
fn nothing_is_found_in_noise_and_blank_images() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    for level in [0, 128, 255] {
        assert!(!has_object(&[level; 3 * SIDE * SIDE]));
    }
    for round in 0..200 {
        let noise: Vec<u8> = (0..3 * SIDE * SIDE).map(|_| rng.random()).collect();
        assert!(!has_object(&noise), "noise, round {round}");
        // Coarse coloured blocks, like the output of an untrained model.
        let block = 8;
        let blocks: Vec<u8> = (0..SIDE / block * SIDE / block * 3).map(|_| rng.random()).collect();
        let coarse: Vec<u8> = (0..SIDE * SIDE * 3)
            .map(|i| {
                let (x, y) = (i / 3 % SIDE / block, i / 3 / SIDE / block);
                blocks[(y * SIDE / block + x) * 3 + i % 3]
            })
            .collect();
        assert!(!has_object(&coarse), "blocks, round {round}");
    }
}

#[test]
fn an_image_with_two_objects_is_rejected() {
    let left = Scene::plain(Size::Small, Colour::Red, Shape::Circle, Place::UpperLeft);
    let right = Scene { place: Place::LowerRight, center: (0.72, 0.72), ..left.clone() };
    let (a, b) = (draw_scene(&left, 64, 64).unwrap(), draw_scene(&right, 64, 64).unwrap());
    assert!(has_object(&a.rgb) && has_object(&b.rgb));
    // The objects are darker than the background in some channel, so the minimum shows both.
    let both: Vec<u8> = a.rgb.iter().zip(&b.rgb).map(|(a, b)| *a.min(b)).collect();
    assert!(!has_object(&both));
}

#[test]
fn a_wrong_number_of_pixels_is_refused() {
    assert!(RgbView::new(4, 4, &[0; 47]).is_err());
}
