//! Encoded image bytes to RGB pixels, as Pillow's `ImageOps.exif_transpose` and `convert("RGB")`
//! give them: upright, with transparency laid over a background. Sizes are checked against bounds before
//! pixels are allocated. Whatever is wrong with the bytes becomes a [`RowError`](crate::RowError).
//!
//! * `decoder`: the entry points
//! * `jpeg`, `libjpeg_turbo`: JPEG, at a reduced scale or some columns only where that is enough
//! * `other_formats`: PNG, WebP, GIF, BMP and TIFF through the `image` crate
//! * `avif`: AVIF as libavif decodes it, through a port of dav1d; `avif_image`: from there to RGB
//! * `rendering`, `color_profile`: from stored pixels to RGB
//! * `exif_orientation`, `tiff_tags`: which way up an image is
//! * `image`, `format`, `scale`, `limits`, `buffer_pool`: shared types

mod avif;
mod avif_image;
mod buffer_pool;
mod color_profile;
mod decoder;
mod exif_orientation;
mod format;
mod image;
mod jpeg;
mod libjpeg_turbo;
mod limits;
mod other_formats;
mod rendering;
mod scale;
mod tiff_tags;

pub use self::buffer_pool::recycle_buffer;
pub use self::decoder::{decode, decode_strip, probe};
pub use self::format::{Format, IMAGE_EXTENSIONS};
pub use self::image::{ImageInfo, Orientation, Rgb8, Strip};
pub use self::limits::{MAX_BYTES, MAX_PIXELS};
pub use self::rendering::{IccHandling, Rendering};
pub use self::scale::Scale;
