//! Scenes: their vocabulary, random choice, captions, outlines and pixels.

mod caption;
pub(crate) mod outline;
mod render;
mod scene;
pub(crate) mod vocabulary;

pub use caption::{Prompt, heldout_prompts, random_caption};
pub use render::draw_scene;
pub use scene::{Combinations, Scene, random_scene};
pub use vocabulary::{Colour, HELD_OUT, Place, Shape, Size, is_held_out};
