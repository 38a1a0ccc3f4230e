//! Charts as SVG and PNG.
//!
//! - `drawing`: lines, dots, bars and text as SVG and as pixels.
//! - `lines`: numbers over steps, or over something else.
//! - `preferences`: which model people prefer.
//! - `timeline`: what computes and communicates at which time of a step.

mod drawing;
pub mod lines;
pub mod preferences;
pub mod timeline;
