//! What a captioner of the user's sees of an image: the largest square in the middle.

use crate::decode::{Rgb8, Strip};
use crate::error::RowError;
use crate::resize::{self, Rect, Resample};

/// The column with the pixels for the captioner: u8, RGB, rows of pixels (HWC); null where no caption is to
/// be made.
pub const PIXELS: &str = "caption_pixels";

/// The column with the captions that a captioner made in an earlier run; null where there are none.
pub const KNOWN: &str = "known_caption";

/// The square that a captioner gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CaptionerView {
    /// Its side in pixels.
    pub side: u32,
}

impl CaptionerView {
    /// Bytes of its pixels.
    pub fn pixel_bytes(self) -> usize {
        3 * self.side as usize * self.side as usize
    }

    /// Crops and resizes an upright image of which all columns are there.
    ///
    /// # Errors
    /// Why the row cannot be used.
    pub fn view(self, image: &Strip) -> Result<Rgb8, RowError> {
        let (width, height) = (image.full_width, image.image.height);
        let short = width.min(height);
        let square = Rect { x: (width - short) / 2, y: (height - short) / 2, width: short, height: short };
        resize::resize(image, square, (self.side, self.side), Resample::Bicubic)
    }
}
