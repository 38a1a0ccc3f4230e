//! The noise schedule that a run trains with.

use tidemill_models::{PredictionType, SchedulerConfig, TimestepSpacing};

use crate::config::TrainConfig;

/// The noise schedule that a run trains with: the model's, with the changes in the run file.
///
/// `StableDiffusionPipeline`, which opens exported models, makes samplers start at timestep 1
/// whatever the model's file says, so previews do the same. With zero terminal SNR, samplers start
/// at pure noise (Lin et al., 2023, section 3.3), from which predicted noise gives no image.
pub fn training_scheduler_config(train: &TrainConfig, scheduler: &SchedulerConfig) -> SchedulerConfig {
    let mut config = scheduler.clone();
    config.prediction_type = train.prediction.unwrap_or(config.prediction_type);
    config.rescale_betas_zero_snr = train.zero_terminal_snr.unwrap_or(config.rescale_betas_zero_snr);
    if config.rescale_betas_zero_snr && config.prediction_type != PredictionType::Epsilon {
        config.timestep_spacing = TimestepSpacing::Trailing;
    }
    config.steps_offset = 1;
    config
}
