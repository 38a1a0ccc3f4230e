//! The checks of `[train]` that need neither a dataset nor a model.

use std::collections::{BTreeMap, BTreeSet};

use tidemill_models::FlowShift;

use super::anomaly::SpikeConfig;
use super::precision::Precision;
use super::train::TrainConfig;
use crate::Error;

impl TrainConfig {
    /// Checks everything that needs neither a dataset nor a model.
    ///
    /// # Errors
    /// [`Error::Config`] names the key and the values it may have.
    pub fn validate(&self) -> Result<(), Error> {
        if self.phase.is_empty() || self.total_steps() == 0 {
            return refuse("train.phase", "give at least one [[train.phase]] with steps > 0");
        }
        self.validate_batches()?;
        self.validate_learning_rates()?;
        self.validate_objective()?;
        self.validate_peak_tflops()?;
        self.validate_optimizer()?;
        self.validate_monitoring()?;
        self.validate_preview()?;
        self.validate_mix()
    }

    /// Checks the batch sizes of all phases.
    fn validate_batches(&self) -> Result<(), Error> {
        for (index, phase) in self.phase.iter().enumerate() {
            let (global, micro) = (self.phase_global_batch(index), self.phase_micro_batch(index));
            let is_own = phase.global_batch.or(phase.micro_batch).is_some();
            let section = if is_own { format!("train.phase.{index}") } else { "train".into() };
            let key = format!("{section}.micro_batch");
            if micro == 0 || global == 0 {
                return refuse(key, "micro_batch and global_batch must be at least 1");
            }
            if micro > global {
                return refuse(key, format!("micro_batch = {micro} is larger than global_batch = {global}"));
            }
        }
        Ok(())
    }

    /// Checks the learning rates of the run and of its phases.
    fn validate_learning_rates(&self) -> Result<(), Error> {
        let rates = self.phase.iter().filter_map(|p| p.learning_rate).chain([self.learning_rate]);
        for rate in rates {
            if !(rate > 0.0 && rate.is_finite()) {
                return refuse("train.learning_rate", format!("{rate} must be a positive number"));
            }
        }
        Ok(())
    }

    /// Checks precision, caption dropout, timesteps, noise offset, flow shift, EDM and min-SNR weighting.
    fn validate_objective(&self) -> Result<(), Error> {
        if (self.precision, self.norm_precision) == (Some(Precision::F32), Some(Precision::Bf16)) {
            return refuse("train.norm_precision", "norms cannot be bf16 where train.precision is f32");
        }
        if let Some(problem) = self.caption_dropout.find_problem() {
            return refuse("train.caption_dropout", problem);
        }
        if let Some(problem) = self.timesteps.find_problem() {
            return refuse("train.timesteps", problem);
        }
        if !(self.noise_offset >= 0.0 && self.noise_offset.is_finite()) {
            return refuse("train.noise_offset", format!("{} must be 0 or positive", self.noise_offset));
        }
        if let Some(problem) = self.flow_shift.and_then(FlowShift::find_problem) {
            return refuse("train.flow_shift", problem);
        }
        if let Some(problem) = self.edm.and_then(|edm| edm.find_problem()) {
            return refuse("train.edm", problem);
        }
        if let Some(gamma) = self.min_snr_gamma.filter(|gamma| !(*gamma > 0.0 && gamma.is_finite())) {
            return refuse("train.min_snr_gamma", format!("{gamma} must be a positive number"));
        }
        Ok(())
    }

    fn validate_peak_tflops(&self) -> Result<(), Error> {
        if let Some(peak) = self.peak_tflops.filter(|peak| !(*peak > 0.0 && peak.is_finite())) {
            return refuse("train.peak_tflops", format!("{peak} must be a positive number"));
        }
        Ok(())
    }

    /// Checks AdamW's settings, clipping and EMA.
    fn validate_optimizer(&self) -> Result<(), Error> {
        if !(self.max_grad_norm >= 0.0 && self.max_grad_norm.is_finite()) {
            let message = format!("{} must be 0 (no clipping) or positive", self.max_grad_norm);
            return refuse("train.max_grad_norm", message);
        }
        if !(self.weight_decay >= 0.0 && self.weight_decay.is_finite()) {
            return refuse("train.weight_decay", format!("{} must be 0 or positive", self.weight_decay));
        }
        if !(self.eps >= 0.0 && self.eps.is_finite()) {
            return refuse("train.eps", format!("{} must be 0 or positive", self.eps));
        }
        if [self.betas.0, self.betas.1].iter().any(|beta| !(0.0..1.0).contains(beta)) {
            let message = format!("{} and {} must be in [0, 1)", self.betas.0, self.betas.1);
            return refuse("train.betas", message);
        }
        if let Some(ema) = self.ema
            && !(0.0..1.0).contains(&ema.decay)
        {
            return refuse("train.ema.decay", format!("{} must be in [0, 1)", ema.decay));
        }
        Ok(())
    }

    /// Checks what watches a run: spike detection, health check, validation and intervals.
    fn validate_monitoring(&self) -> Result<(), Error> {
        if let Some(SpikeConfig { factor, window, .. }) = self.spike
            && !(factor > 1.0 && window > 0)
        {
            let message = format!("factor = {factor} must be above 1, and window = {window} at least 1");
            return refuse("train.spike", message);
        }
        if !(self.health.slower_than > 1.0 && self.health.slower_than.is_finite()) {
            let message = format!("{} must be above 1", self.health.slower_than);
            return refuse("train.health.slower_than", message);
        }
        if self.validation.as_ref().is_some_and(|validation| validation.every == 0 || validation.rows == 0) {
            return refuse("train.validation", "every and rows must be at least 1");
        }
        if self.log_every == 0 || self.shuffle_window == 0 {
            return refuse("train.log_every", "log_every and shuffle_window must be at least 1");
        }
        Ok(())
    }

    /// Checks the guidance scale of previews. Whether the sampler supports the number of steps is
    /// checked once its noise schedule is known.
    fn validate_preview(&self) -> Result<(), Error> {
        match &self.preview {
            Some(preview) if !preview.guidance.is_finite() => {
                refuse("train.preview.guidance", format!("{} must be a number", preview.guidance))
            }
            _ => Ok(()),
        }
    }

    /// Checks that names are unique and known, and that each dataset has one amount.
    fn validate_mix(&self) -> Result<(), Error> {
        let mut names = BTreeSet::new();
        for (i, entry) in self.mix.iter().enumerate() {
            if entry.amount().is_none() {
                let message = format!("give `{}` one of proportion, repeat and count", entry.name);
                return refuse(format!("train.mix.{i}"), message);
            }
            if !names.insert(&entry.name) {
                return refuse(format!("train.mix.{i}.name"), format!("`{}` is given twice", entry.name));
            }
        }
        for (i, phase) in self.phase.iter().enumerate() {
            let unknown = phase.mix.iter().flat_map(BTreeMap::keys).find(|name| !names.contains(name));
            if let Some(name) = unknown {
                let message = format!("`{name}` is not a name in [[train.mix]]");
                return refuse(format!("train.phase.{i}.mix"), message);
            }
        }
        Ok(())
    }
}

fn refuse(key: impl Into<String>, message: impl Into<String>) -> Result<(), Error> {
    Err(Error::config(key, message))
}

#[cfg(test)]
mod tests {
    use tidemill_models::EdmConfig;
    use tidemill_store::stream::MixAmount;

    use super::*;
    use crate::config::{
        EmaConfig, MixConfig, PhaseConfig, PreviewConfig, TimestepSampling, ValidationConfig,
    };

    fn phases() -> Vec<PhaseConfig> {
        let phase = |resolution, steps| PhaseConfig { steps, ..PhaseConfig::new(resolution) };
        vec![phase(256, 10), phase(512, 5)]
    }

    #[test]
    fn invalid_settings_are_refused_by_key() {
        let phase = phases();
        let good = || TrainConfig { phase: phase.clone(), ..TrainConfig::default() };
        assert!(good().validate().is_ok());
        let mixed = |name: &str, repeat, proportion| {
            let (name, dataset, count) = (name.to_owned(), None, None);
            MixConfig { name, dataset, proportion, repeat, count }
        };
        let of = |name: &str| PhaseConfig {
            mix: Some([(name.into(), MixAmount::Count(5))].into()),
            ..phase[0].clone()
        };
        let two = vec![mixed("a", Some(1.0), None), mixed("b", Some(2.0), None)];
        let good_mix = TrainConfig { mix: two.clone(), phase: vec![of("b"), phase[1].clone()], ..good() };
        assert!(good_mix.validate().is_ok());
        let shares = |i: usize| good_mix.stream_phase(i).mix.into_iter().collect::<Vec<_>>();
        assert_eq!(shares(0), [("b".into(), MixAmount::Count(5))]);
        assert_eq!(shares(1), [("a".into(), MixAmount::Repeat(1.0)), ("b".into(), MixAmount::Repeat(2.0))]);
        for (config, key) in [
            (TrainConfig { phase: Vec::new(), ..good() }, "train.phase"),
            (TrainConfig { micro_batch: 512, ..good() }, "train.micro_batch"),
            (TrainConfig { micro_batch: 0, ..good() }, "train.micro_batch"),
            (
                TrainConfig {
                    phase: vec![PhaseConfig { global_batch: Some(16), ..phase[0].clone() }],
                    ..good()
                },
                "train.phase.0.micro_batch",
            ),
            (TrainConfig { learning_rate: f64::NAN, ..good() }, "train.learning_rate"),
            (
                TrainConfig {
                    precision: Some(Precision::F32),
                    norm_precision: Some(Precision::Bf16),
                    ..good()
                },
                "train.norm_precision",
            ),
            (TrainConfig { caption_dropout: 1.5.into(), ..good() }, "train.caption_dropout"),
            (
                TrainConfig {
                    caption_dropout: crate::config::CaptionDropout::PerEncoder(Vec::new()),
                    ..good()
                },
                "train.caption_dropout",
            ),
            (TrainConfig { weight_decay: -0.1, ..good() }, "train.weight_decay"),
            (TrainConfig { eps: f64::NAN, ..good() }, "train.eps"),
            (TrainConfig { betas: (0.9, 1.0), ..good() }, "train.betas"),
            (TrainConfig { noise_offset: f64::NAN, ..good() }, "train.noise_offset"),
            (TrainConfig { min_snr_gamma: Some(0.0), ..good() }, "train.min_snr_gamma"),
            (TrainConfig { flow_shift: Some(FlowShift::Fixed(0.0)), ..good() }, "train.flow_shift"),
            (
                TrainConfig { edm: Some(EdmConfig { rho: 0.0, ..EdmConfig::default() }), ..good() },
                "train.edm",
            ),
            (TrainConfig { peak_tflops: Some(f64::NAN), ..good() }, "train.peak_tflops"),
            (
                TrainConfig { timesteps: TimestepSampling::LogitNormal { mean: 0.0, std: 0.0 }, ..good() },
                "train.timesteps",
            ),
            (TrainConfig { max_grad_norm: -1.0, ..good() }, "train.max_grad_norm"),
            (
                TrainConfig {
                    validation: Some(ValidationConfig { rows: 0, ..ValidationConfig::default() }),
                    ..good()
                },
                "train.validation",
            ),
            (TrainConfig { mix: vec![mixed("a", Some(1.0), Some(1.0))], ..good() }, "train.mix.0"),
            (TrainConfig { mix: vec![two[0].clone(), two[0].clone()], ..good() }, "train.mix.1.name"),
            (TrainConfig { phase: vec![of("c")], mix: two.clone(), ..good() }, "train.phase.0.mix"),
            (
                TrainConfig { spike: Some(SpikeConfig { factor: 0.5, ..SpikeConfig::default() }), ..good() },
                "train.spike",
            ),
            (
                TrainConfig { ema: Some(EmaConfig { decay: 1.0, ..EmaConfig::default() }), ..good() },
                "train.ema.decay",
            ),
            (
                TrainConfig {
                    preview: Some(PreviewConfig { guidance: f64::NAN, ..PreviewConfig::default() }),
                    ..good()
                },
                "train.preview.guidance",
            ),
        ] {
            let message = config.validate().unwrap_err().to_string();
            assert!(message.contains(key), "{message}");
        }
    }
}
