//! The noise levels of all timesteps: of diffusion (Ho et al., 2020), of rectified flow (Liu et al., 2022) or of EDM
//! (Karras et al., 2022). Computed in f32 and in diffusers' order of operations.

use tch::{Device, Kind, Tensor};

use super::config::{BetaSchedule, NoiseProcess, SchedulerConfig};
use super::flow_shift::{FlowShift, shift_flows};
use super::noise_levels::NoiseLevels;

/// A noise schedule over T timesteps, from little noise to much.
#[derive(Debug)]
pub struct NoiseSchedule {
    config: SchedulerConfig,
    /// How much noise there is at each timestep, `[T]`, f32: cumulative products of the alphas for diffusion, else
    /// sigma. A shift that follows from the image's size is not in it.
    table: Tensor,
}

impl NoiseSchedule {
    /// Computes the schedule on `device`.
    pub fn new(config: SchedulerConfig, device: Device) -> Self {
        let table = match config.process() {
            NoiseProcess::Diffusion => alphas_cumprod(&config),
            NoiseProcess::Flow => flow_sigmas(&config),
            NoiseProcess::Edm(edm) => Tensor::from_slice(&edm.sigmas(config.num_train_timesteps)),
        };
        Self { config, table: table.to_device(device) }
    }

    /// The configuration.
    pub fn config(&self) -> &SchedulerConfig {
        &self.config
    }

    /// Cumulative products of the alphas, `[T]`, f32; `None` for rectified flow and EDM.
    pub fn alphas_cumprod(&self) -> Option<&Tensor> {
        matches!(self.config.process(), NoiseProcess::Diffusion).then_some(&self.table)
    }

    /// The noise levels of rows at `timesteps` `[N]`, i64, from 0. Images of `image_seq_len` tokens
    /// ([`Denoiser::image_seq_len`](crate::Denoiser::image_seq_len)) decide on a dynamic shift.
    pub fn levels(&self, timesteps: &Tensor, image_seq_len: i64) -> NoiseLevels<'_> {
        let values = self.table.index_select(0, timesteps);
        let values = match self.config.flow_shift {
            FlowShift::Dynamic(_) if self.config.is_flow() => {
                shift_flows(&values, self.config.flow_shift.for_image(image_seq_len))
            }
            _ => values,
        };
        NoiseLevels::new(&self.config, timesteps.shallow_clone(), values)
    }
}

/// Cumulative products of the alphas, `[T]`, f32.
fn alphas_cumprod(config: &SchedulerConfig) -> Tensor {
    let (n, options) = (config.num_train_timesteps, (Kind::Float, Device::Cpu));
    let betas = match config.beta_schedule {
        BetaSchedule::Linear => Tensor::linspace(config.beta_start, config.beta_end, n, options),
        BetaSchedule::ScaledLinear => {
            Tensor::linspace(config.beta_start.sqrt(), config.beta_end.sqrt(), n, options).square()
        }
    };
    let betas = if config.rescale_betas_zero_snr { rescale_to_zero_terminal_snr(&betas) } else { betas };
    let alphas: Tensor = 1.0 - betas;
    alphas.cumprod(0, Kind::Float)
}

/// sigma of rectified flow, `[T]`, f32: 1 / T to 1, with a fixed shift.
fn flow_sigmas(config: &SchedulerConfig) -> Tensor {
    let n = config.num_train_timesteps;
    let sigmas = Tensor::linspace(1, n, n, (Kind::Float, Device::Cpu)) / n;
    match config.flow_shift {
        FlowShift::Fixed(shift) => shift_flows(&sigmas, shift),
        FlowShift::Dynamic(_) => sigmas,
    }
}

/// Betas of a schedule with zero terminal SNR: shifts and scales sqrt(alphas_cumprod) so that the
/// last one becomes zero and the first one keeps its value (Lin et al., 2023, algorithm 1;
/// diffusers' `rescale_zero_terminal_snr`).
fn rescale_to_zero_terminal_snr(betas: &Tensor) -> Tensor {
    let alphas: Tensor = 1.0 - betas;
    let root = alphas.cumprod(0, Kind::Float).sqrt();
    let (first, last) = (root.get(0), root.get(-1));
    let root = (root - &last) * (&first / (&first - &last));
    let bar = root.square();
    let n = bar.size()[0];
    let ratios = bar.narrow(0, 1, n - 1) / bar.narrow(0, 0, n - 1);
    1.0 - Tensor::cat(&[bar.narrow(0, 0, 1), ratios], 0)
}
