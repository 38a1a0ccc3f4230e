//! What a program that calls training, such as the Python package, adds to it.

use std::sync::Arc;

use tch::Device;
use tidemill_models::TrainableDenoiser;
use tidemill_train::StepMetrics;

use crate::error::Result;
use crate::online::RemoteEncoders;

/// Creates a denoiser with its initial weights on a device.
pub type MakeDenoiser<'a> = Box<dyn FnOnce(Device) -> Result<Box<dyn TrainableDenoiser>> + Send + 'a>;

/// Callbacks and replacements for training in this process.
pub struct TrainHooks<'a> {
    /// Called with each line of metrics, on every rank. Returns whether training continues.
    pub on_metrics: Box<dyn FnMut(&StepMetrics) -> bool + Send + 'a>,
    /// Called before each step. Returns whether training stops, as after a signal.
    pub should_stop: Box<dyn Fn() -> bool + Send + 'a>,
    /// Encodes rows of online training in place of this process.
    pub remote_encoders: Option<Arc<dyn RemoteEncoders>>,
    /// Creates the denoiser to train in place of the model folder's U-Net.
    pub denoiser: Option<MakeDenoiser<'a>>,
}

impl Default for TrainHooks<'_> {
    fn default() -> Self {
        Self {
            on_metrics: Box::new(|_| true),
            should_stop: Box::new(|| false),
            remote_encoders: None,
            denoiser: None,
        }
    }
}
