//! A pixel buffer that each thread reuses.

use std::cell::Cell;

use crate::decode::image::Rgb8;

/// Most bytes of a buffer that a thread keeps for its next image.
const MAX_SPARE: usize = 16 << 20;

thread_local! {
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Gives the buffer of an image that nobody needs any more to the next JPEG that this thread decodes: fresh memory comes
/// from the system page by page, which takes time that shows.
pub fn recycle(image: Rgb8) {
    if image.pixels.capacity() <= MAX_SPARE {
        SPARE.set(image.pixels);
    }
}

/// A buffer whose bytes are of no meaning.
pub fn buffer(bytes: usize) -> Vec<u8> {
    let mut buffer = SPARE.take();
    buffer.resize(bytes, 0);
    buffer
}
