//! The noise schedule that a run trains with.

use tidemill_models::{FlowShift, PredictionType, SchedulerConfig, TimestepSpacing};

use crate::config::{TimestepSampling, TrainConfig};
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
    let is_flow = config.is_flow();
    // A model of EDM may be trained to predict flow: it is another network then.
    config.edm = train.edm.or(config.edm.filter(|_| !is_flow));
    refuse_settings_without_effect(train, &config)?;
    let no_shift = FlowShift::NONE;
    config.flow_shift = if is_flow { train.flow_shift.unwrap_or(config.flow_shift) } else { no_shift };
    let is_diffusion = !is_flow && config.edm.is_none();
    config.rescale_betas_zero_snr =
        is_diffusion && train.zero_terminal_snr.unwrap_or(config.rescale_betas_zero_snr);
    if config.rescale_betas_zero_snr && config.prediction_type != PredictionType::Epsilon {
        config.timestep_spacing = TimestepSpacing::Trailing;
    }
    Ok(config)
}

/// Refuses settings that have no meaning for the run's prediction.
fn refuse_settings_without_effect(train: &TrainConfig, config: &SchedulerConfig) -> Result<(), Error> {
    let (is_flow, is_edm) = (config.is_flow(), config.edm.is_some());
    let is_log_normal = matches!(train.timesteps, TimestepSampling::LogNormal { .. });
    let shift_needs_flow =
        "has an effect only with train.prediction = \"flow_prediction\"; remove it, or set that";
    let flow_ends_in_noise = "has no effect with train.prediction = \"flow_prediction\", whose last timestep is \
                              pure noise anyway; remove it";
    let edm_has_levels = "has no effect with EDM (train.edm, or the model's scheduler), which has noise levels of its own; remove it";
    let edm_is_no_flow = "does not fit with \"flow_prediction\" (train.prediction, or the model's scheduler): remove \
                          it, or set train.prediction = \"epsilon\"";
    let log_normal_needs_edm =
        "log_normal is a distribution of EDM's noise levels; set train.edm = {}, or use logit_normal";
    let checks = [
        (is_flow && train.zero_terminal_snr.is_some(), "train.zero_terminal_snr", flow_ends_in_noise),
        (is_edm && train.zero_terminal_snr.is_some(), "train.zero_terminal_snr", edm_has_levels),
        (is_flow && is_edm, "train.edm", edm_is_no_flow),
        (!is_flow && train.flow_shift.is_some(), "train.flow_shift", shift_needs_flow),
        (!is_edm && is_log_normal, "train.timesteps", log_normal_needs_edm),
    ];
    match checks.into_iter().find(|(is_wrong, ..)| *is_wrong) {
        Some((_, key, message)) => Err(Error::config(key, message)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use tidemill_models::EdmConfig;

    use super::*;

    #[test]
    fn settings_without_meaning_for_the_prediction_are_refused() {
        let (flow, v) = (Some(PredictionType::FlowPrediction), Some(PredictionType::VPrediction));
        let (edm, shift) = (Some(EdmConfig::default()), Some(FlowShift::Fixed(3.0)));
        let timesteps = TimestepSampling::LogNormal { mean: -1.2, std: 1.2 };
        let config = |train: &TrainConfig| training_scheduler_config(train, &SchedulerConfig::default());
        let empty = TrainConfig::default;
        for (train, key) in [
            (TrainConfig { prediction: flow, zero_terminal_snr: Some(true), ..empty() }, "zero_terminal_snr"),
            (TrainConfig { edm, zero_terminal_snr: Some(true), ..empty() }, "zero_terminal_snr"),
            (TrainConfig { prediction: flow, edm, ..empty() }, "edm"),
            (TrainConfig { flow_shift: shift, ..empty() }, "flow_shift"),
            (TrainConfig { timesteps, ..empty() }, "timesteps"),
        ] {
            let refused = config(&train).unwrap_err().to_string();
            assert!(refused.contains(&format!("train.{key}")), "{refused}");
        }
        let shifted = config(&TrainConfig { prediction: flow, flow_shift: shift, ..empty() }).unwrap();
        assert_eq!(shifted.flow_shift, FlowShift::Fixed(3.0));
        assert!(config(&TrainConfig { prediction: flow, ..empty() }).unwrap().flow_shift.is_none());
        let preconditioned = TrainConfig { prediction: v, edm, timesteps, ..empty() };
        assert_eq!(config(&preconditioned).unwrap().edm, edm);
    }
}
