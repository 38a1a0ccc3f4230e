//! The quickstart's synthetic data. [`write_scenes`] writes captioned scenes (one coloured shape on
//! a plain background) as LAION-like Parquet, with a few rows broken in known ways.
//! [`heldout_prompts`] lists prompts for combinations of colour and shape that are never drawn.
//! [`detect_object`] finds by geometry alone, without any model, what an image shows.
//!
//! ```
//! use tidemill_synth::{Colour, Place, Scene, Shape, Size, detect_object, draw_scene};
//! let scene = Scene::plain(Size::Large, Colour::Red, Shape::Star, Place::Center);
//! let image = draw_scene(&scene, 64, 64)?;
//! let found = detect_object(&image.view()).ok_or("no clear object")?;
//! assert_eq!((found.colour, found.shape), (Colour::Red, Shape::Star));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod checker;
mod dataset;
mod drawing;
mod error;
mod image;

pub use checker::{Detection, detect_object};
pub use dataset::{Defect, SynthConfig, SynthReport, write_scenes};
pub use drawing::{
    Colour, Combinations, HELD_OUT, Place, Prompt, Scene, Shape, Size, draw_scene, heldout_prompts,
    is_held_out, random_caption, random_scene,
};
pub use error::{Error, Result};
pub use image::{RgbImage, RgbView};
