//! A pixel buffer per thread that is used again for the next JPEG.

use std::cell::Cell;

use crate::decode::image::Rgb8;

/// Most bytes of a buffer that a thread keeps.
const MAX_SPARE: usize = 16 << 20;

thread_local! {
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Keeps the buffer of an image that is no longer needed for the next JPEG that this thread
/// decodes. New memory comes from the system page by page, which takes measurable time.
pub fn recycle_buffer(image: Rgb8) {
    if image.pixels.capacity() <= MAX_SPARE {
        SPARE.set(image.pixels);
    }
}

/// Takes the buffer of this thread, with unspecified content.
pub fn take_buffer(bytes: usize) -> Vec<u8> {
    let mut buffer = SPARE.take();
    buffer.resize(bytes, 0);
    buffer
}
