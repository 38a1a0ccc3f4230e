//! A run of a sampler, step by step.

use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use super::ddim::Ddim;
use super::dpm_solver::DpmSolver;
use crate::error::Error;
use crate::schedule::NoiseSchedule;

/// The rule by which a step is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SamplerMethod {
    /// Denoising diffusion implicit models (Song et al., 2021), eta = 0.
    #[serde(rename = "ddim")]
    Ddim,
    /// DPM-Solver++ (Lu et al., 2022), second order, multistep, midpoint.
    #[serde(rename = "dpm++2m")]
    DpmPlusPlus2M,
}

/// One run of a sampler.
#[derive(Debug)]
pub struct Sampler {
    timesteps: Vec<i64>,
    solver: Solver,
    /// The number of steps that were taken.
    steps_taken: usize,
}

#[derive(Debug)]
enum Solver {
    Ddim(Ddim),
    DpmSolver(DpmSolver),
}

impl Sampler {
    /// A sampler that takes `steps` steps over `schedule`.
    ///
    /// # Errors
    /// If `steps` is 0 or not less than the schedule's timesteps, or if DDIM would start at a
    /// timestep without signal and the network predicts noise, which does not determine the latents
    /// there.
    pub fn new(method: SamplerMethod, schedule: &NoiseSchedule, steps: usize) -> Result<Self, Error> {
        let total = usize::try_from(schedule.config().num_train_timesteps).unwrap_or(0);
        if steps == 0 || steps >= total {
            return Err(Error::Sampler(format!("steps = {steps} must be between 1 and {}", total - 1)));
        }
        let alphas_cumprod = Vec::<f32>::try_from(schedule.alphas_cumprod().to_kind(Kind::Float))
            .map_err(|e| Error::Sampler(e.to_string()))?;
        let (timesteps, solver) = match method {
            SamplerMethod::Ddim => {
                let (timesteps, ddim) = Ddim::new(schedule.config(), &alphas_cumprod, steps)?;
                (timesteps, Solver::Ddim(ddim))
            }
            SamplerMethod::DpmPlusPlus2M => {
                let (timesteps, solver) = DpmSolver::new(schedule.config(), &alphas_cumprod, steps);
                (timesteps, Solver::DpmSolver(solver))
            }
        };
        Ok(Self { timesteps, solver, steps_taken: 0 })
    }

    /// The timesteps that it visits, in order.
    pub fn timesteps(&self) -> &[i64] {
        &self.timesteps
    }

    /// Takes the next step, from `sample` [N, C, h, w] and the network's `prediction` for it.
    /// Returns the less noisy sample.
    ///
    /// # Errors
    /// If all steps have been taken.
    pub fn step(&mut self, prediction: &Tensor, sample: &Tensor) -> Result<Tensor, Error> {
        let step = self.steps_taken;
        if step == self.timesteps.len() {
            return Err(Error::Sampler(format!("all {step} steps are taken")));
        }
        self.steps_taken += 1;
        Ok(match &mut self.solver {
            Solver::Ddim(ddim) => ddim.step(step, prediction, sample),
            Solver::DpmSolver(solver) => solver.step(step, prediction, sample),
        })
    }
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;
    use crate::{SchedulerConfig, TimestepSpacing};

    fn schedule(config: SchedulerConfig) -> NoiseSchedule {
        NoiseSchedule::new(config, Device::Cpu)
    }

    #[test]
    fn unsupported_steps_and_schedules_are_refused() {
        let plain = schedule(SchedulerConfig::default());
        for steps in [0, 1000, 2000] {
            let refused = Sampler::new(SamplerMethod::Ddim, &plain, steps).unwrap_err().to_string();
            assert!(refused.contains(&format!("steps = {steps} must be between 1 and 999")), "{refused}");
        }
        let zero = schedule(SchedulerConfig {
            rescale_betas_zero_snr: true,
            timestep_spacing: TimestepSpacing::Trailing,
            ..SchedulerConfig::default()
        });
        let refused = Sampler::new(SamplerMethod::Ddim, &zero, 10).unwrap_err().to_string();
        assert!(refused.contains("v_prediction"), "{refused}");
        assert!(Sampler::new(SamplerMethod::DpmPlusPlus2M, &zero, 10).is_ok());
    }

    #[test]
    fn step_after_the_last_one_is_refused() {
        let mut sampler =
            Sampler::new(SamplerMethod::DpmPlusPlus2M, &schedule(SchedulerConfig::default()), 1).unwrap();
        let x = Tensor::ones([1, 1, 1, 1], (Kind::Float, Device::Cpu));
        assert!(sampler.step(&x, &x).is_ok());
        assert!(sampler.step(&x, &x).unwrap_err().to_string().contains("all 1 steps are taken"));
    }
}
