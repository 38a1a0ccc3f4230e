//! Scores pictures of the quickstart's world: the share that shows the right colour and shape, judged by a rule-based
//! checker that no model has a say in.

use image::RgbImage;
use serde::Serialize;
use tidemill_synth::{Prompt, RgbView, check};

use crate::error::Result;

/// How many pictures show what their prompts ask for.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Score {
    /// Pictures looked at.
    pub pictures: usize,
    /// Share with the right colour and shape.
    pub score: f64,
    /// Share with the right colour.
    pub colour: f64,
    /// Share with the right shape.
    pub shape: f64,
    /// Share with the right place.
    pub place: f64,
}

/// Judges each picture by its prompt.
///
/// # Errors
/// If a picture has no pixels.
pub fn score(pictures: &[RgbImage], prompts: &[Prompt]) -> Result<Score> {
    let (mut both, mut colour, mut shape, mut place) = (0usize, 0usize, 0usize, 0usize);
    for (picture, prompt) in pictures.iter().zip(prompts) {
        let view = RgbView::new(picture.width() as usize, picture.height() as usize, picture.as_raw())?;
        let Some(found) = check(&view) else { continue };
        colour += usize::from(found.colour == prompt.colour);
        shape += usize::from(found.shape == prompt.shape);
        place += usize::from(found.place == prompt.place);
        both += usize::from(found.colour == prompt.colour && found.shape == prompt.shape);
    }
    let share = |n: usize| n as f64 / pictures.len().max(1) as f64;
    Ok(Score {
        pictures: pictures.len(),
        score: share(both),
        colour: share(colour),
        shape: share(shape),
        place: share(place),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_synth::{Colour, Place, Scene, Shape, Size, draw};

    #[test]
    fn right_wrong_and_empty_pictures() {
        let scene = Scene::plain(Size::Large, Colour::Red, Shape::Star, Place::Center);
        let drawn = draw(&scene, 64, 64).unwrap();
        let rgb: Vec<u8> = drawn.view().pixels().flatten().collect();
        let star = RgbImage::from_raw(64, 64, rgb).unwrap();
        let empty = RgbImage::from_pixel(64, 64, image::Rgb([200, 200, 200]));
        let prompt = |colour| Prompt::new(Size::Large, colour, Shape::Star, Place::Center);
        let prompts = [prompt(Colour::Red), prompt(Colour::Blue), prompt(Colour::Red)];
        let result = score(&[star.clone(), star, empty], &prompts).unwrap();
        assert_eq!((result.pictures, result.score), (3, 1.0 / 3.0));
        assert_eq!((result.colour, result.shape), (1.0 / 3.0, 2.0 / 3.0));
    }
}
