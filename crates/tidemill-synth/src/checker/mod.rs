//! The rule-based checker, which detects what an image shows.

mod detect;
mod oklab;
mod segment;

pub use detect::{Detection, detect_object};
