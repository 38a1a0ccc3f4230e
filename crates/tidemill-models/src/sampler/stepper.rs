//! A run of a sampler, step by step.

use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

use super::ddim::Ddim;
use super::dpm_solver::DpmSolver;
use crate::error::Error;
use crate::schedule::{NoiseSchedule, SchedulerConfig};

/// The rule by which a step is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SamplerMethod {
    /// Denoising diffusion implicit models (Song et al., 2021), eta = 0. Euler's method if the network predicts
    /// rectified flow.
    #[serde(rename = "ddim")]
    Ddim,
    /// DPM-Solver++ (Lu et al., 2022), second order, multistep, midpoint.
    #[serde(rename = "dpm++2m")]
    DpmPlusPlus2M,
}

/// One run of a sampler.
#[derive(Debug)]
pub struct Sampler {
    timesteps: Timesteps,
    solver: Solver,
    /// The number of steps that were taken.
    steps_taken: usize,
}

/// The timesteps of a sampler, as the network takes them.
#[derive(Clone, Debug, PartialEq)]
pub enum Timesteps {
    /// Of diffusion.
    Discrete(Vec<i64>),
    /// Of rectified flow: sigma times the number of timesteps.
    Continuous(Vec<f32>),
}

impl Timesteps {
    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Self::Discrete(timesteps) => timesteps.len(),
            Self::Continuous(timesteps) => timesteps.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The timestep of a step for `n` samples: [n], i64 or f32.
    pub fn batch(&self, step: usize, n: i64, device: Device) -> Tensor {
        match self {
            Self::Discrete(timesteps) => Tensor::full([n], timesteps[step], (Kind::Int64, device)),
            Self::Continuous(timesteps) => {
                Tensor::full([n], f64::from(timesteps[step]), (Kind::Float, device))
            }
        }
    }
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
        let config = schedule.config();
        let (timesteps, solver) = match (schedule.alphas_cumprod(), method) {
            (Some(alphas_cumprod), method) => {
                let alphas_cumprod = Vec::<f32>::try_from(alphas_cumprod.to_kind(Kind::Float))
                    .map_err(|e| Error::Sampler(e.to_string()))?;
                let (timesteps, solver) = new_solver(method, config, &alphas_cumprod, steps)?;
                (Timesteps::Discrete(timesteps), solver)
            }
            (None, SamplerMethod::Ddim) => {
                let (timesteps, ddim) = Ddim::of_flow(config, steps);
                (Timesteps::Continuous(timesteps), Solver::Ddim(ddim))
            }
            (None, SamplerMethod::DpmPlusPlus2M) => {
                let (timesteps, solver) = DpmSolver::of_flow(config, steps);
                (Timesteps::Continuous(timesteps), Solver::DpmSolver(solver))
            }
        };
        Ok(Self { timesteps, solver, steps_taken: 0 })
    }

    /// The timesteps that it visits, in order.
    pub fn timesteps(&self) -> &Timesteps {
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

/// A solver of diffusion, and the timesteps that it visits.
fn new_solver(
    method: SamplerMethod,
    config: &SchedulerConfig,
    alphas_cumprod: &[f32],
    steps: usize,
) -> Result<(Vec<i64>, Solver), Error> {
    Ok(match method {
        SamplerMethod::Ddim => {
            let (timesteps, ddim) = Ddim::new(config, alphas_cumprod, steps)?;
            (timesteps, Solver::Ddim(ddim))
        }
        SamplerMethod::DpmPlusPlus2M => {
            let (timesteps, solver) = DpmSolver::new(config, alphas_cumprod, steps);
            (timesteps, Solver::DpmSolver(solver))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TimestepSpacing;

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
