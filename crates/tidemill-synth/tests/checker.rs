//! The checker names freshly drawn scenes, blurred and compressed, and names nothing in noise, blanks and jumbles.

#![allow(clippy::unwrap_used)]

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tidemill_synth::{
    Colour, Combinations, Picture, Place, RgbView, Scene, Shape, Size, check, draw, random_scene,
};
use tidemill_testing::seed;
use turbojpeg::{Image, PixelFormat, Subsamp};

const SIDE: usize = 64;

/// A box blur with weights (w, 1 - 2 w, w) along both axes.
fn blur(picture: &Picture, w: f32) -> Picture {
    let mut rgb: Vec<f32> = picture.rgb.iter().copied().map(f32::from).collect();
    for (step, length) in [(3, picture.width), (3 * picture.width, picture.height)] {
        let before = rgb.clone();
        for (i, value) in rgb.iter_mut().enumerate() {
            let at = i / step % length;
            let left = before[if at == 0 { i } else { i - step }];
            let right = before[if at + 1 == length { i } else { i + step }];
            *value = w * (left + right) + (1.0 - 2.0 * w) * before[i];
        }
    }
    Picture { rgb: rgb.into_iter().map(|v| v.round() as u8).collect(), ..*picture }
}

fn recompress(picture: &Picture, quality: i32) -> Picture {
    let image = Image {
        pixels: picture.rgb.as_slice(),
        width: picture.width,
        pitch: 3 * picture.width,
        height: picture.height,
        format: PixelFormat::RGB,
    };
    let jpeg = turbojpeg::compress(image, quality, Subsamp::Sub2x2).unwrap();
    let image = turbojpeg::decompress(&jpeg, PixelFormat::RGB).unwrap();
    Picture { rgb: image.pixels, ..*picture }
}

/// Shares of scenes whose colour and shape, and whose size and place, are named right.
fn accuracy(
    rng: &mut ChaCha8Rng,
    combinations: Combinations,
    spoil: impl Fn(Picture) -> Picture,
) -> (f64, f64) {
    let total = 500;
    let (mut named, mut located) = (0, 0);
    for _ in 0..total {
        let scene = random_scene(combinations, rng);
        let picture = spoil(draw(&scene, SIDE as u32, SIDE as u32).unwrap());
        let Some(found) = check(&picture.view()) else { continue };
        named += usize::from((found.colour, found.shape) == (scene.colour, scene.shape));
        located += usize::from((found.size, found.place) == (scene.size, scene.place));
    }
    (named as f64 / total as f64, located as f64 / total as f64)
}

#[test]
fn drawn_scenes_are_named_right() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    for combinations in [Combinations::Trained, Combinations::HeldOut] {
        let clean = accuracy(&mut rng, combinations, |p| p);
        let spoilt = accuracy(&mut rng, combinations, |p| recompress(&blur(&p, 0.2), 85));
        let badly = accuracy(&mut rng, combinations, |p| recompress(&blur(&blur(&p, 0.25), 0.25), 75));
        println!(
            "{combinations:?}: (colour and shape, size and place) {clean:?}, spoilt {spoilt:?}, badly {badly:?}"
        );
        assert!(clean.0 >= 0.995 && clean.1 >= 0.99);
        assert!(spoilt.0 >= 0.99 && spoilt.1 >= 0.98);
        assert!(badly.0 >= 0.97);
    }
}

#[test]
fn a_wrong_colour_or_shape_is_noticed() {
    // The checker must follow the pixels, not merely find something: each pair is told from all the others.
    for &colour in Colour::ALL {
        for &shape in Shape::ALL {
            for &size in Size::ALL {
                let picture = draw(&Scene::plain(size, colour, shape, Place::Center), 64, 64).unwrap();
                let found = check(&picture.view()).unwrap();
                assert_eq!((found.size, found.colour, found.shape), (size, colour, shape));
            }
        }
    }
}

fn found_in(rgb: &[u8]) -> bool {
    check(&RgbView::new(SIDE, SIDE, rgb).unwrap()).is_some()
}

#[test]
fn noise_and_blanks_show_nothing() {
    let mut rng = ChaCha8Rng::seed_from_u64(seed());
    for level in [0, 128, 255] {
        assert!(!found_in(&[level; 3 * SIDE * SIDE]));
    }
    for round in 0..200 {
        let noise: Vec<u8> = (0..3 * SIDE * SIDE).map(|_| rng.random()).collect();
        assert!(!found_in(&noise), "noise, round {round}");
        // Coarse coloured blocks, as an untrained model may give.
        let block = 8;
        let blocks: Vec<u8> = (0..SIDE / block * SIDE / block * 3).map(|_| rng.random()).collect();
        let coarse: Vec<u8> = (0..SIDE * SIDE * 3)
            .map(|i| {
                let (x, y) = (i / 3 % SIDE / block, i / 3 / SIDE / block);
                blocks[(y * SIDE / block + x) * 3 + i % 3]
            })
            .collect();
        assert!(!found_in(&coarse), "blocks, round {round}");
    }
}

#[test]
fn two_objects_are_no_clear_one() {
    let left = Scene::plain(Size::Small, Colour::Red, Shape::Circle, Place::UpperLeft);
    let right = Scene { place: Place::LowerRight, center: (0.72, 0.72), ..left.clone() };
    let (a, b) = (draw(&left, 64, 64).unwrap(), draw(&right, 64, 64).unwrap());
    assert!(found_in(&a.rgb) && found_in(&b.rgb));
    // The object is darker than the background in some channel, so the minimum shows both.
    let both: Vec<u8> = a.rgb.iter().zip(&b.rgb).map(|(a, b)| *a.min(b)).collect();
    assert!(!found_in(&both));
}

#[test]
fn pixels_must_fit_the_sides() {
    assert!(RgbView::new(4, 4, &[0; 47]).is_err());
}
