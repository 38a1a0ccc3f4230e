//! Charts as SVG and PNG.
//!
//! - `drawing`: lines, dots, bars and text as SVG and as pixels.
//! - `lines`: numbers over steps, or over something else.
//! - `preferences`: which model people prefer.

mod drawing;
pub mod lines;
pub mod preferences;
