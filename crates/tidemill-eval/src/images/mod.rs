//! From 8-bit images to the input of a network: resize, crop and normalise, as each network's
//! authors do. A metric that resizes in another way measures something else.

mod image_input;
mod inception_input;
mod linear_filter;
mod processor;

pub use image_input::ImageInput;
pub use inception_input::{InceptionInput, InceptionResize};
pub use processor::ImageProcessor;
