//! WebDataset: samples as neighbouring members of a tar, plain or gzipped.

mod samples;
mod tar;

pub use self::samples::Samples;
