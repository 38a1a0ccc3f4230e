//! The input of any of the networks.

use tidemill_data::decode::Rgb8;
use tidemill_models::INCEPTION_SIZE;

use super::inception_input::InceptionInput;
use super::processor::ImageProcessor;
use crate::error::Result;

/// How images are prepared for a network.
#[derive(Clone, Debug)]
pub enum ImageInput {
    /// For FID's InceptionV3.
    Inception(InceptionInput),
    /// As a folder of transformers says.
    Transformers(ImageProcessor),
}

impl ImageInput {
    /// The side of the prepared images.
    pub fn side(&self) -> u32 {
        match self {
            Self::Inception(_) => u32::try_from(INCEPTION_SIZE).unwrap_or(0),
            Self::Transformers(processor) => processor.side(),
        }
    }

    /// An image as planes [3, side, side].
    ///
    /// # Errors
    /// If the image cannot be resized.
    pub fn process(&self, image: Rgb8) -> Result<Vec<f32>> {
        match self {
            Self::Inception(input) => Ok(input.process(&image)),
            Self::Transformers(processor) => processor.process(image),
        }
    }
}
