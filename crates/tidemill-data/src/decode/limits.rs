//! Bounds on the size of images.

use crate::error::RowError;

/// Most encoded bytes of one image.
pub const MAX_BYTES: usize = 256 << 20;

/// Most pixels of one image: 300 MB decoded, more than any camera takes and less than any
/// decompression bomb.
pub const MAX_PIXELS: u64 = 100_000_000;

/// Checks the size that an image's header announces, before pixels are allocated.
///
/// # Errors
/// [`RowError::Size`] if there are no pixels, or more than [`MAX_PIXELS`].
pub fn check_size(width: u32, height: u32) -> Result<(), RowError> {
    if width == 0 || height == 0 {
        return Err(RowError::Size(format!("{width}x{height} has no pixels")));
    }
    if u64::from(width) * u64::from(height) > MAX_PIXELS {
        return Err(RowError::Size(format!("{width}x{height} is more than {MAX_PIXELS} pixels")));
    }
    Ok(())
}
