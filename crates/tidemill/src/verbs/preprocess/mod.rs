//! `tidemill preprocess`: image-caption pairs in, a latent dataset out.

mod command;

pub use self::command::{Args, preprocess, run};
