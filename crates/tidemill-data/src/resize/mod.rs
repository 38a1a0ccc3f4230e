//! A part of an image at a given size, as Pillow's `image.resize(size, filter, box=crop)` gives it:
//! value for value, because the arithmetic is the same.
//!
//! * `resample`: crop and resize in two passes
//! * `filter`, `kernel`: the filters and their fixed-point weights
//! * `passes`, `avx2`: the two passes, in plain Rust and with AVX2
//! * `geometry`: rectangles

#[cfg(target_arch = "x86_64")]
mod avx2;
mod filter;
mod geometry;
mod kernel;
mod passes;
mod resample;

pub use self::filter::Resample;
pub use self::geometry::{FractionalRect, Rect};
pub use self::kernel::bicubic;
pub use self::passes::to_planes;
pub use self::resample::{required_columns, resize};
