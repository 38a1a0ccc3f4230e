//! The input of FID's InceptionV3.

use serde::{Deserialize, Serialize};
use tidemill_data::decode::Rgb8;
use tidemill_models::INCEPTION_SIZE;

use super::linear_filter::LinearFilter;

/// How images are resized to 299x299 pixels. FIDs that were measured in different ways cannot be
/// compared (Parmar et al., 2022).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InceptionResize {
    /// Bilinear without antialiasing, as in the original TensorFlow code, torch-fidelity, and
    /// torchmetrics with `antialias=False`.
    #[default]
    Tensorflow,
    /// Antialiased bicubic, as in clean-fid.
    Clean,
    /// Bilinear without antialiasing, as in pytorch-fid.
    Pytorch,
}

/// Resizes and normalises images for [`tidemill_models::FidInceptionV3`].
#[derive(Clone, Copy, Debug, Default)]
pub struct InceptionInput(pub InceptionResize);

impl InceptionInput {
    /// An image as planes [3, 299, 299].
    pub fn process(self, image: &Rgb8) -> Vec<f32> {
        let side = INCEPTION_SIZE as usize;
        let new_filter = match self.0 {
            InceptionResize::Tensorflow => LinearFilter::tensorflow_bilinear,
            InceptionResize::Clean => LinearFilter::pillow_bicubic,
            InceptionResize::Pytorch => LinearFilter::pytorch_bilinear,
        };
        let (width, height) = (image.width as usize, image.height as usize);
        let pixels: Vec<f32> = image.pixels.iter().map(|byte| f32::from(*byte)).collect();
        let narrow = new_filter(width, side).filter_rows(&pixels, width, 3);
        let resized = new_filter(height, side).filter_columns(&narrow, 3 * side);
        let mut planes = vec![0.0; resized.len()];
        for (i, pixel) in resized.chunks_exact(3).enumerate() {
            for (channel, value) in pixel.iter().enumerate() {
                planes[channel * side * side + i] = self.normalise(*value);
            }
        }
        planes
    }

    fn normalise(self, value: f32) -> f32 {
        match self.0 {
            InceptionResize::Tensorflow => (value - 128.0) / 128.0,
            // Bicubic filters overshoot.
            InceptionResize::Clean => (value.clamp(0.0, 255.0) - 128.0) / 128.0,
            InceptionResize::Pytorch => value / 127.5 - 1.0,
        }
    }
}
