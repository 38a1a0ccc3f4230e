//! Captions of scenes. Half of them have the canonical wording. The others vary words and order,
//! but always name all four attributes correctly. Prompts for scoring have the canonical wording.

use rand::Rng;
use serde::{Deserialize, Serialize};

use crate::drawing::scene::{Scene, choose};
use crate::drawing::vocabulary::{Colour, HELD_OUT, Place, Shape, Size};

/// A caption and what its image has to show.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prompt {
    /// The caption, e.g. "a small red circle in the upper left".
    pub text: String,
    /// The object's size.
    pub size: Size,
    /// The object's colour.
    pub colour: Colour,
    /// The object's outline.
    pub shape: Shape,
    /// The object's place.
    pub place: Place,
}

impl Prompt {
    /// Builds the caption in its canonical wording.
    pub fn new(size: Size, colour: Colour, shape: Shape, place: Place) -> Self {
        let text = format!("a {size} {colour} {shape} in the {place}");
        Self { text, size, colour, shape, place }
    }
}

/// The prompts for each held-out pair of colour and shape, in each size and place. Training data
/// contains none of these pairs.
pub fn heldout_prompts() -> Vec<Prompt> {
    let mut prompts = Vec::new();
    for &(colour, shape) in HELD_OUT {
        for &size in Size::ALL {
            prompts.extend(Place::ALL.iter().map(|&place| Prompt::new(size, colour, shape, place)));
        }
    }
    prompts
}

/// Writes a caption with random wording.
pub fn random_caption(scene: &Scene, rng: &mut impl Rng) -> String {
    if rng.random_bool(0.5) {
        return Prompt::new(scene.size, scene.colour, scene.shape, scene.place).text;
    }
    let size = choose(rng, size_words(scene.size));
    let colour = choose(rng, colour_words(scene.colour));
    let shape = choose(rng, shape_words(scene.shape));
    let place = choose(rng, place_words(scene.place));
    let object = format!("a {size} {colour} {shape}");
    let text = match rng.random_range(0..10) {
        0 => format!("{object} {place}"),
        1 => format!("a photo of {object} {place}"),
        2 => format!("there is {object} {place}"),
        3 => format!("{place}, {object}"),
        4 => format!("a {shape} that is {size} and {colour}, {place}"),
        5 => format!("{colour} {shape}, {size}, {place}"),
        6 => format!("one {size} {colour} {shape} {place} of the picture"),
        7 => format!("the picture shows {object} {place}"),
        8 => format!("{object} on a plain background, {place}"),
        _ => format!("a {colour} {shape} {place}, it is {size}"),
    };
    punctuate(text, rng)
}

/// Randomly capitalizes the first letter and adds a full stop.
fn punctuate(mut text: String, rng: &mut impl Rng) -> String {
    if rng.random_bool(0.3)
        && let Some(first) = text.get_mut(..1)
    {
        first.make_ascii_uppercase();
    }
    if rng.random_bool(0.3) {
        text.push('.');
    }
    text
}

fn size_words(size: Size) -> &'static [&'static str] {
    match size {
        Size::Small => &["small", "tiny", "little"],
        Size::Large => &["large", "big", "huge"],
    }
}

fn colour_words(colour: Colour) -> &'static [&'static str] {
    match colour {
        Colour::Red => &["red"],
        Colour::Orange => &["orange"],
        Colour::Yellow => &["yellow"],
        Colour::Green => &["green"],
        Colour::Cyan => &["cyan", "turquoise"],
        Colour::Blue => &["blue"],
        Colour::Purple => &["purple", "violet"],
        Colour::Black => &["black"],
    }
}

fn shape_words(shape: Shape) -> &'static [&'static str] {
    match shape {
        Shape::Circle => &["circle", "disc", "dot"],
        Shape::Square => &["square"],
        Shape::Triangle => &["triangle"],
        Shape::Star => &["star"],
        Shape::Cross => &["cross", "plus sign"],
    }
}

fn place_words(place: Place) -> &'static [&'static str] {
    match place {
        Place::UpperLeft => &["in the upper left", "at the top left", "in the upper left corner"],
        Place::UpperRight => &["in the upper right", "at the top right", "in the upper right corner"],
        Place::LowerLeft => &["in the lower left", "at the bottom left", "in the lower left corner"],
        Place::LowerRight => &["in the lower right", "at the bottom right", "in the lower right corner"],
        Place::Center => &["in the center", "in the middle", "in the centre"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drawing::scene::{Combinations, random_scene};
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    #[test]
    fn captions_name_every_attribute_and_vary() {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let mut seen = std::collections::HashSet::new();
        for _ in 0..2000 {
            let scene = random_scene(Combinations::Trained, &mut rng);
            let text = random_caption(&scene, &mut rng);
            let lower = text.to_lowercase();
            for words in [size_words(scene.size), colour_words(scene.colour), shape_words(scene.shape)] {
                assert!(words.iter().any(|w| lower.contains(w)), "{text}: none of {words:?}");
            }
            assert!(place_words(scene.place).iter().any(|w| lower.contains(w)), "{text}");
            seen.insert(text);
        }
        assert!(seen.len() > 900, "only {} different captions", seen.len());
    }

    #[test]
    fn heldout_prompts_cover_each_pair_size_and_place_once() {
        let prompts = heldout_prompts();
        assert_eq!(prompts.len(), HELD_OUT.len() * Size::ALL.len() * Place::ALL.len());
        let texts: std::collections::HashSet<_> = prompts.iter().map(|p| &p.text).collect();
        assert_eq!(texts.len(), prompts.len());
        assert!(texts.contains(&"a small red square in the upper left".to_string()));
    }
}
