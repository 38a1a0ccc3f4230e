//! The quickstart's world. [`synth`] writes captioned scenes (one coloured shape on a plain background) as LAION-like
//! Parquet, a few rows of it broken in known ways; [`heldout_prompts`] lists prompts for combinations of colour and
//! shape that are never drawn; [`check`] says by geometry alone, without any model, what an image shows.
//!
//! ```
//! use tidemill_synth::{Colour, Place, Scene, Shape, Size, check, draw};
//! let scene = Scene::plain(Size::Large, Colour::Red, Shape::Star, Place::Center);
//! let image = draw(&scene, 64, 64)?;
//! let found = check(&image.view()).ok_or("no clear object")?;
//! assert_eq!((found.colour, found.shape), (Colour::Red, Shape::Star));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod caption;
mod check;
mod config;
mod draw;
mod error;
mod geometry;
mod picture;
mod scene;
mod segment;
mod vocabulary;
mod write;

pub use caption::{Prompt, caption, heldout_prompts};
pub use check::{Finding, check};
pub use config::{Broken, Combinations, SynthConfig, SynthReport};
pub use draw::draw;
pub use error::{Error, Result};
pub use picture::{Picture, RgbView};
pub use scene::{Scene, random_scene};
pub use vocabulary::{Colour, HELD_OUT, Place, Shape, Size, is_held_out};
pub use write::synth;
