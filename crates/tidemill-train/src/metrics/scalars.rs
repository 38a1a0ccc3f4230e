//! A step's metrics as scalars, for TensorBoard and trackers.

use tidemill_telemetry::NUMBERS;

use crate::metrics::step_metrics::StepMetrics;

impl StepMetrics {
    /// The metrics under their tags in TensorBoard. Numbers of several ranks are summarised.
    pub fn to_scalars(&self) -> Vec<(String, f64)> {
        let largest = |mib: &[u64]| mib.iter().max().copied().unwrap_or(0) as f64;
        let mut scalars = vec![
            ("train/loss", self.loss),
            ("train/grad_norm", self.grad_norm),
            ("train/learning_rate", self.learning_rate),
            ("throughput/images_per_second", self.images_per_second),
            ("throughput/tflops_per_rank", self.tflops),
            ("throughput/data_wait", self.data_wait),
            ("memory/most_of_any_rank_mib", largest(&self.memory_mib)),
            ("checkpoint/step", self.checkpoint as f64),
        ];
        scalars.extend(self.gpu_memory_mib.iter().map(|mib| ("memory/most_of_any_gpu_mib", largest(mib))));
        scalars.extend(self.mfu.map(|mfu| ("throughput/mfu", mfu)));
        if let Some(validation) = &self.validation {
            scalars.push(("validation/loss", validation.loss));
            scalars.extend(validation.ema_loss.map(|loss| ("validation/ema_loss", loss)));
        }
        let mut scalars: Vec<(String, f64)> =
            scalars.into_iter().map(|(tag, value)| (tag.to_owned(), value)).collect();
        for (kind, time) in self.communication.by_kind() {
            scalars.push((format!("communication/{kind}_exposed"), time.exposed));
            scalars.extend(time.busy.map(|seconds| (format!("communication/{kind}"), seconds)));
        }
        let samples = self.telemetry.as_deref().unwrap_or_default();
        for number in NUMBERS {
            let value = number.summarise(samples);
            scalars.extend(value.map(|value| (format!("telemetry/{}", number.name), value)));
        }
        let tenths = self.loss_by_timestep.iter().enumerate();
        scalars.extend(
            tenths.filter_map(|(tenth, loss)| Some((format!("loss_by_timestep/tenth_{tenth}"), (*loss)?))),
        );
        scalars
    }
}
