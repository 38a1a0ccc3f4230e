//! FID's InceptionV3, as TensorFlow published it in 2015: images to the 2048 features of its last
//! pooling.

mod blocks;
mod conv;
mod model;

pub use model::{FidInceptionV3, INCEPTION_FEATURES, INCEPTION_SIZE};
