//! A run of a sampler, step by step.

use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

use super::ddim::{Ddim, euler_sigmas};
use super::dpm_solver::{DpmSolver, dpm_flow_sigmas};
use super::noise_level::{NoiseLevel, Prediction};
use crate::error::Error;
use crate::schedule::{EdmConfig, NoiseProcess, NoiseSchedule, SchedulerConfig};

/// The rule by which a step is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SamplerMethod {
    /// Denoising diffusion implicit models (Song et al., 2021), eta = 0. Euler's method if the network predicts
    /// rectified flow or is EDM's.
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
    prediction: Prediction,
    /// The number of steps that were taken.
    steps_taken: usize,
}

/// The timesteps of a sampler, as the network takes them.
#[derive(Clone, Debug, PartialEq)]
pub enum Timesteps {
    /// Of diffusion.
    Discrete(Vec<i64>),
    /// Of rectified flow: sigma times the number of timesteps. Of EDM: a quarter of sigma's logarithm.
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

    /// The timestep of a step for `n` samples: `[n]`, i64 or f32.
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

impl Solver {
    /// A solver over these levels, of which the last is without noise.
    fn of_levels(method: SamplerMethod, config: &SchedulerConfig, levels: Vec<NoiseLevel>) -> Self {
        match method {
            SamplerMethod::Ddim => Self::Ddim(Ddim::of_levels(config, &levels)),
            SamplerMethod::DpmPlusPlus2M => Self::DpmSolver(DpmSolver::of_levels(config, levels)),
        }
    }

    /// The level before a step.
    fn level(&self, step: usize) -> NoiseLevel {
        match self {
            Self::Ddim(ddim) => ddim.level(step),
            Self::DpmSolver(solver) => solver.level(step),
        }
    }
}

impl Sampler {
    /// A sampler that takes `steps` steps over `schedule`, for images of `image_seq_len` tokens
    /// ([`Denoiser::image_seq_len`](crate::Denoiser::image_seq_len)).
    ///
    /// # Errors
    /// If `steps` is 0 or not less than the schedule's timesteps, or if DDIM would start at a
    /// timestep without signal and the network predicts noise, which does not determine the latents
    /// there.
    pub fn new(
        method: SamplerMethod,
        schedule: &NoiseSchedule,
        steps: usize,
        image_seq_len: i64,
    ) -> Result<Self, Error> {
        let config = schedule.config();
        let total = usize::try_from(config.num_train_timesteps).unwrap_or(0);
        if steps == 0 || steps >= total {
            return Err(Error::Sampler(format!("steps = {steps} must be between 1 and {}", total - 1)));
        }
        let (timesteps, solver) = match (schedule.alphas_cumprod(), config.process()) {
            (Some(alphas_cumprod), _) => {
                let alphas_cumprod = Vec::<f32>::try_from(alphas_cumprod.to_kind(Kind::Float))
                    .map_err(|e| Error::Sampler(e.to_string()))?;
                let (timesteps, solver) = new_solver(method, config, &alphas_cumprod, steps)?;
                (Timesteps::Discrete(timesteps), solver)
            }
            (None, NoiseProcess::Edm(edm)) => {
                let (timesteps, levels) = edm_levels(edm, steps);
                (Timesteps::Continuous(timesteps), Solver::of_levels(method, config, levels))
            }
            (None, _) => {
                let (timesteps, levels) = flow_levels(method, config, steps, image_seq_len);
                (Timesteps::Continuous(timesteps), Solver::of_levels(method, config, levels))
            }
        };
        Ok(Self { timesteps, solver, prediction: Prediction::new(config), steps_taken: 0 })
    }

    /// Checks what [`Self::new`] checks.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn check(method: SamplerMethod, config: &SchedulerConfig, steps: usize) -> Result<(), Error> {
        Self::new(method, &NoiseSchedule::new(config.clone(), Device::Cpu), steps, 1).map(drop)
    }

    /// The sample before the first step, from standard normal `noise` [N, C, h, w].
    pub fn initial_sample(&self, noise: &Tensor) -> Tensor {
        noise * self.prediction.initial_deviation()
    }

    /// What the network sees of `sample` [N, C, h, w] in the next step.
    pub fn scale_input(&self, sample: &Tensor) -> Tensor {
        self.prediction.scale_input(self.solver.level(self.steps_taken), sample)
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

/// The timesteps of rectified flow and the levels before each step, and the one without noise behind the last. diffusers
/// rounds those of DPM-Solver down.
fn flow_levels(
    method: SamplerMethod,
    config: &SchedulerConfig,
    steps: usize,
    image_seq_len: i64,
) -> (Vec<f32>, Vec<NoiseLevel>) {
    let total = config.num_train_timesteps;
    let (timesteps, sigmas): (Vec<f32>, Vec<f32>) = match method {
        SamplerMethod::Ddim => {
            let sigmas = euler_sigmas(config, steps, image_seq_len);
            (sigmas.iter().map(|sigma| sigma * total as f32).collect(), sigmas)
        }
        SamplerMethod::DpmPlusPlus2M => {
            let sigmas = dpm_flow_sigmas(config, steps, image_seq_len);
            let timesteps = sigmas.iter().map(|sigma| (sigma * total as f64).floor() as f32);
            (timesteps.collect(), sigmas.iter().map(|sigma| *sigma as f32).collect())
        }
    };
    (timesteps, sigmas.into_iter().chain([0.0]).map(NoiseLevel::flow).collect())
}

/// The timesteps of EDM and the levels before each step, and the one without noise behind the last.
fn edm_levels(edm: &EdmConfig, steps: usize) -> (Vec<f32>, Vec<NoiseLevel>) {
    let place = |i: usize| if steps > 1 { i as f64 / (steps - 1) as f64 } else { 0.0 };
    let sigmas: Vec<f32> = (0..steps).map(|i| edm.sigma(place(i)) as f32).collect();
    let timesteps = sigmas.iter().map(|sigma| 0.25 * sigma.ln()).collect();
    let levels = sigmas.into_iter().chain([0.0]).map(|sigma| NoiseLevel { alpha: 1.0, sigma: sigma.into() });
    (timesteps, levels.collect())
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

    #[test]
    fn unsupported_steps_and_schedules_are_refused() {
        let plain = SchedulerConfig::default();
        for steps in [0, 1000, 2000] {
            let refused = Sampler::check(SamplerMethod::Ddim, &plain, steps).unwrap_err().to_string();
            assert!(refused.contains(&format!("steps = {steps} must be between 1 and 999")), "{refused}");
        }
        let zero = SchedulerConfig {
            rescale_betas_zero_snr: true,
            timestep_spacing: TimestepSpacing::Trailing,
            ..SchedulerConfig::default()
        };
        let refused = Sampler::check(SamplerMethod::Ddim, &zero, 10).unwrap_err().to_string();
        assert!(refused.contains("v_prediction"), "{refused}");
        assert!(Sampler::check(SamplerMethod::DpmPlusPlus2M, &zero, 10).is_ok());
    }

    #[test]
    fn step_after_the_last_one_is_refused() {
        let schedule = NoiseSchedule::new(SchedulerConfig::default(), Device::Cpu);
        let mut sampler = Sampler::new(SamplerMethod::DpmPlusPlus2M, &schedule, 1, 1).unwrap();
        let x = Tensor::ones([1, 1, 1, 1], (Kind::Float, Device::Cpu));
        assert!(sampler.step(&x, &x).is_ok());
        assert!(sampler.step(&x, &x).unwrap_err().to_string().contains("all 1 steps are taken"));
    }
}
