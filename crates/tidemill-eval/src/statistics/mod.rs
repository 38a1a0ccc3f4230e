//! Statistics of the features of any number of images, in bounded memory: mean and covariance for
//! Fréchet distances, and a sample of the features for metrics that compare images one by one.

mod accumulator;
mod feature_statistics;
mod moments;
mod sample;

pub use accumulator::Accumulator;
pub use feature_statistics::FeatureStatistics;
pub use moments::Moments;
