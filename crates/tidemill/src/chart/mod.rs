//! Charts as SVG and PNG.
//!
//! - `drawing`: lines, dots, bars and text as SVG and as pixels.
//! - `steps`: numbers over steps.
//! - `preferences`: which model people prefer.

mod drawing;
pub mod preferences;
pub mod steps;
