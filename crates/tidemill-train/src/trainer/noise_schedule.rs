//! The noise schedule that a run trains with.

use tidemill_models::{PredictionType, SchedulerConfig, TimestepSpacing};

use crate::config::TrainConfig;
use crate::error::Error;

/// The noise schedule that a run trains with: the model's, with the changes in the run file.
///
/// `StableDiffusionPipeline`, which opens exported models, makes samplers start at timestep 1
/// whatever the model's file says, so previews do the same. With zero terminal SNR, samplers start
/// at pure noise (Lin et al., 2023, section 3.3), from which predicted noise gives no image.
///
/// # Errors
/// [`Error::Config`] for a setting that has no meaning for this schedule.
pub fn training_scheduler_config(
    train: &TrainConfig,
    scheduler: &SchedulerConfig,
) -> Result<SchedulerConfig, Error> {
    let mut config = scheduler.clone();
    config.prediction_type = train.prediction.unwrap_or(config.prediction_type);
    config.steps_offset = 1;
    if config.is_flow() {
        check_flow(train)?;
        config.flow_shift = train.flow_shift.unwrap_or(config.flow_shift);
        config.rescale_betas_zero_snr = false;
        return Ok(config);
    }
    if train.flow_shift.is_some() {
        let message =
            "has an effect only with train.prediction = \"flow_prediction\"; remove it, or set that";
        return Err(Error::config("train.flow_shift", message));
    }
    config.flow_shift = 1.0;
    config.rescale_betas_zero_snr = train.zero_terminal_snr.unwrap_or(config.rescale_betas_zero_snr);
    if config.rescale_betas_zero_snr && config.prediction_type != PredictionType::Epsilon {
        config.timestep_spacing = TimestepSpacing::Trailing;
    }
    Ok(config)
}

fn check_flow(train: &TrainConfig) -> Result<(), Error> {
    if train.zero_terminal_snr.is_none() {
        return Ok(());
    }
    let message = "has no effect with train.prediction = \"flow_prediction\", whose last timestep is pure noise \
                   anyway; remove it";
    Err(Error::config("train.zero_terminal_snr", message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_without_meaning_for_the_prediction_are_refused() {
        let train = |prediction, flow_shift, zero_terminal_snr| TrainConfig {
            prediction: Some(prediction),
            flow_shift,
            zero_terminal_snr,
            ..TrainConfig::default()
        };
        let config = |train: TrainConfig| training_scheduler_config(&train, &SchedulerConfig::default());
        let (flow, epsilon) = (PredictionType::FlowPrediction, PredictionType::Epsilon);
        let refused = config(train(flow, None, Some(true))).unwrap_err().to_string();
        assert!(refused.contains("train.zero_terminal_snr"), "{refused}");
        let refused = config(train(epsilon, Some(3.0), None)).unwrap_err().to_string();
        assert!(refused.contains("train.flow_shift"), "{refused}");
        assert_eq!(config(train(flow, Some(3.0), None)).unwrap().flow_shift, 3.0);
        assert_eq!(config(train(flow, None, None)).unwrap().flow_shift, 1.0);
    }
}
