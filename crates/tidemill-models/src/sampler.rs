//! The reverse process: from noise to latents with DDIM or DPM-Solver++ (2M), deterministic, with
//! classifier-free guidance. Formulas and rounding follow diffusers' DDIMScheduler (eta = 0) and
//! DPMSolverMultistepScheduler (its defaults), step by step.

use crate::{Denoiser, Error, NoiseSchedule, PredictionType, TimestepSpacing};
use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

/// The rule that takes one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SamplerMethod {
    /// Denoising diffusion implicit models (Song et al., 2021), eta = 0.
    #[serde(rename = "ddim")]
    Ddim,
    /// DPM-Solver++ (Lu et al., 2022), second order, multistep, midpoint.
    #[serde(rename = "dpm++2m")]
    DpmPlusPlus2M,
}

/// One run of a sampler: its timesteps, and what it remembers from step to step.
#[derive(Debug)]
pub struct Sampler {
    method: SamplerMethod,
    prediction: PredictionType,
    timesteps: Vec<i64>,
    /// DDIM: alphas_cumprod before and after each step, in pairs. DPM-Solver: sigma at each step and after the last.
    levels: Vec<f32>,
    step: usize,
    previous: Option<Tensor>,
}

impl Sampler {
    /// A sampler that takes `steps` steps over `schedule`.
    ///
    /// # Errors
    /// If `steps` is 0 or more than the schedule has timesteps, or DDIM is asked to begin at a
    /// timestep without signal that its prediction type cannot recover from.
    pub fn new(method: SamplerMethod, schedule: &NoiseSchedule, steps: usize) -> Result<Self, Error> {
        let config = schedule.config();
        let total = usize::try_from(config.num_train_timesteps).unwrap_or(0);
        if steps == 0 || steps >= total {
            return Err(Error::Sampler(format!("steps = {steps} must be between 1 and {}", total - 1)));
        }
        let alphas = Vec::<f32>::try_from(schedule.alphas_cumprod().to_kind(Kind::Float))
            .map_err(|e| Error::Sampler(e.to_string()))?;
        let (spacing, offset) = (config.timestep_spacing, config.steps_offset);
        let timesteps = match method {
            SamplerMethod::Ddim => ddim_timesteps(total, steps, spacing, offset),
            SamplerMethod::DpmPlusPlus2M => dpm_timesteps(total, steps, spacing, offset),
        };
        let prediction = config.prediction_type;
        let mut levels: Vec<f32> = timesteps.iter().map(|t| alphas[index(*t, total)]).collect();
        if method == SamplerMethod::Ddim {
            if prediction == PredictionType::Epsilon && levels.contains(&0.0) {
                let message = "a zero-terminal-SNR schedule with noise prediction cannot start at pure \
                               noise: train with prediction = \"v_prediction\"";
                return Err(Error::Sampler(message.into()));
            }
            let stride = i64::try_from(total / steps).unwrap_or(1);
            let last = if config.set_alpha_to_one { 1.0 } else { alphas[0] };
            let before = |t: &i64| if *t < stride { last } else { alphas[index(t - stride, total)] };
            // DDIM goes to `t - T / steps`, which is the next timestep except at the end.
            let targets: Vec<f32> = timesteps.iter().map(before).collect();
            levels = levels.iter().zip(&targets).flat_map(|(a, b)| [*a, *b]).collect();
        } else {
            levels = levels.iter().map(|a| sigma(*a, config.rescale_betas_zero_snr)).collect();
            levels.push(0.0);
        }
        Ok(Self { method, prediction, timesteps, levels, step: 0, previous: None })
    }

    /// The timesteps it visits, in order.
    pub fn timesteps(&self) -> &[i64] {
        &self.timesteps
    }

    /// Takes the next step: from `sample` [N, C, h, w] and the network's `prediction` for it.
    ///
    /// # Errors
    /// After the last step.
    pub fn step(&mut self, prediction: &Tensor, sample: &Tensor) -> Result<Tensor, Error> {
        if self.step == self.timesteps.len() {
            return Err(Error::Sampler(format!("all {} steps are taken", self.step)));
        }
        let next = match self.method {
            SamplerMethod::Ddim => self.ddim_step(prediction, sample),
            SamplerMethod::DpmPlusPlus2M => self.dpm_step(prediction, sample),
        };
        self.step += 1;
        Ok(next)
    }

    /// Song et al., 2021, formula 12.
    fn ddim_step(&self, output: &Tensor, sample: &Tensor) -> Tensor {
        let (from, to) = (self.levels[2 * self.step], self.levels[2 * self.step + 1]);
        let (alpha, sigma) = (root(from), root(1.0 - from));
        let (latents, noise) = match self.prediction {
            PredictionType::Epsilon => ((sample - output * sigma) / alpha, output.shallow_clone()),
            PredictionType::VPrediction => (sample * alpha - output * sigma, output * alpha + sample * sigma),
        };
        latents * root(to) + noise * root(1.0 - to)
    }

    /// Lu et al., 2022, algorithm 2; the first and the last step are of first order.
    fn dpm_step(&mut self, output: &Tensor, sample: &Tensor) -> Tensor {
        let (now, next) = (Level::of(self.levels[self.step]), Level::of(self.levels[self.step + 1]));
        let latents = match self.prediction {
            PredictionType::Epsilon => (sample - output * now.sigma) / now.alpha,
            PredictionType::VPrediction => sample * now.alpha - output * now.sigma,
        };
        let h = next.lambda - now.lambda;
        let shrink = next.alpha * ((-h).exp() - 1.0);
        let mut result = sample * (next.sigma / now.sigma) - &latents * shrink;
        let last = self.step + 1 == self.timesteps.len();
        if let (Some(previous), false) = (&self.previous, last) {
            let before = Level::of(self.levels[self.step - 1]);
            let ratio = (now.lambda - before.lambda) / h;
            result -= (&latents - previous) * (0.5 * shrink / ratio);
        }
        self.previous = Some(latents);
        result
    }
}

/// A noise level in the variance-preserving parametrisation.
struct Level {
    alpha: f64,
    sigma: f64,
    /// Half the log signal-to-noise ratio.
    lambda: f64,
}

impl Level {
    fn of(sigma: f32) -> Self {
        let alpha = 1.0 / (f64::from(sigma).powi(2) + 1.0).sqrt();
        let scaled = f64::from(sigma) * alpha;
        Self { alpha, sigma: scaled, lambda: alpha.ln() - scaled.ln() }
    }
}

fn root(x: f32) -> f64 {
    f64::from(x.sqrt())
}

fn index(timestep: i64, total: usize) -> usize {
    usize::try_from(timestep).unwrap_or(0).min(total - 1)
}

/// sqrt((1 - a) / a); with zero-terminal SNR, diffusers puts 2^-24 for a zero `a`.
fn sigma(alpha_cumprod: f32, zero_snr: bool) -> f32 {
    let a = if zero_snr && alpha_cumprod == 0.0 { (-24f32).exp2() } else { alpha_cumprod };
    ((1.0 - a) / a).sqrt()
}

fn ddim_timesteps(total: usize, steps: usize, spacing: TimestepSpacing, offset: i64) -> Vec<i64> {
    match spacing {
        TimestepSpacing::Leading => {
            let stride = total / steps;
            (0..steps).rev().map(|i| to_i64(i * stride) + offset).collect()
        }
        TimestepSpacing::Trailing => trailing(total, steps),
        TimestepSpacing::Linspace => (0..steps).rev().map(|i| spaced(total - 1, i, steps - 1)).collect(),
    }
}

fn dpm_timesteps(total: usize, steps: usize, spacing: TimestepSpacing, offset: i64) -> Vec<i64> {
    match spacing {
        TimestepSpacing::Leading => {
            let stride = total / (steps + 1);
            (1..=steps).rev().map(|i| to_i64(i * stride) + offset).collect()
        }
        TimestepSpacing::Trailing => trailing(total, steps),
        TimestepSpacing::Linspace => (1..=steps).rev().map(|i| spaced(total - 1, i, steps)).collect(),
    }
}

/// The `i`-th of `intervals` + 1 evenly spaced values from 0 to `end`, rounded as numpy does.
fn spaced(end: usize, i: usize, intervals: usize) -> i64 {
    if intervals == 0 {
        return 0;
    }
    (end as f64 / intervals as f64 * i as f64).round_ties_even() as i64
}

/// From the end by a stride that is rounded as numpy's `arange` does, which decides the ties. (For some
/// numbers of steps `arange` gives diffusers one more timestep, -1: that one is not followed.)
fn trailing(total: usize, steps: usize) -> Vec<i64> {
    let end = total as f64;
    let stride = end - (end - end / steps as f64);
    (0..steps).map(|i| (end - stride * i as f64).round_ties_even() as i64 - 1).collect()
}

fn to_i64(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// What a sample is conditioned on.
pub struct Conditioning<'a> {
    /// Text embeddings of the prompts [N, L, D].
    pub text: &'a Tensor,
    /// Embedding of the empty (or negative) prompt [1, L, D] or [N, L, D].
    pub unconditional: &'a Tensor,
    /// Guidance scale (Ho & Salimans, 2022): 1 switches guidance off.
    pub guidance_scale: f64,
}

/// Denoises `noise` [N, C, h, w] to latents in the U-Net's scale (divide by the VAE's scaling factor
/// before decoding). `on_step` is called after every step.
///
/// # Errors
/// If libtorch fails (out of memory), or the sampler has been used.
pub fn sample_latents(
    denoiser: &dyn Denoiser,
    mut sampler: Sampler,
    noise: &Tensor,
    conditioning: &Conditioning,
    mut on_step: impl FnMut(usize),
) -> Result<Tensor, Error> {
    let n = noise.size()[0];
    let guided = conditioning.guidance_scale != 1.0;
    let text = if guided {
        Tensor::cat(&[expand(conditioning.unconditional, n), conditioning.text.shallow_clone()], 0)
    } else {
        conditioning.text.shallow_clone()
    };
    let mut latents = noise.shallow_clone();
    for (done, timestep) in sampler.timesteps().to_vec().into_iter().enumerate() {
        let prediction = tidemill_torch::guard(|| {
            tch::no_grad(|| {
                let input =
                    if guided { Tensor::cat(&[&latents, &latents], 0) } else { latents.shallow_clone() };
                let timesteps = Tensor::full([input.size()[0]], timestep, (Kind::Int64, input.device()));
                let output =
                    denoiser.denoise(&input.to_kind(text.kind()), &timesteps, &text).to_kind(latents.kind());
                if !guided {
                    return output;
                }
                let halves = output.chunk(2, 0);
                &halves[0] + (&halves[1] - &halves[0]) * conditioning.guidance_scale
            })
        })?;
        latents = sampler.step(&prediction, &latents)?;
        on_step(done + 1);
    }
    Ok(latents)
}

fn expand(unconditional: &Tensor, n: i64) -> Tensor {
    let size = unconditional.size();
    if size[0] == n {
        unconditional.shallow_clone()
    } else {
        unconditional.expand([n, size[1], size[2]], false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SchedulerConfig;
    use tch::Device;

    fn schedule(config: SchedulerConfig) -> NoiseSchedule {
        NoiseSchedule::new(config, Device::Cpu)
    }

    #[test]
    fn impossible_runs_are_refused() {
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
    fn a_sampler_ends_after_its_last_step() {
        let mut sampler =
            Sampler::new(SamplerMethod::DpmPlusPlus2M, &schedule(SchedulerConfig::default()), 1).unwrap();
        let x = Tensor::ones([1, 1, 1, 1], (Kind::Float, Device::Cpu));
        assert!(sampler.step(&x, &x).is_ok());
        assert!(sampler.step(&x, &x).unwrap_err().to_string().contains("all 1 steps are taken"));
    }

    /// With a prediction a for the text and b for the empty prompt, a step sees b + g (a - b); with
    /// g = 1 the empty prompt is not even run.
    #[test]
    fn guidance_extrapolates() {
        struct MeanOfText(std::cell::RefCell<Vec<i64>>);
        impl Denoiser for MeanOfText {
            fn denoise(&self, sample: &Tensor, timesteps: &Tensor, text: &Tensor) -> Tensor {
                self.0.borrow_mut().push(timesteps.size()[0]);
                let mean = text.mean_dim([1i64, 2].as_slice(), false, Kind::Float).reshape([-1, 1, 1, 1]);
                mean.expand_as(sample)
            }
        }
        let options = (Kind::Float, Device::Cpu);
        let (text, empty) = (Tensor::full([2, 3, 4], 2.0, options), Tensor::full([1, 3, 4], 0.5, options));
        let noise = Tensor::randn([2, 1, 2, 2], options);
        let plain = schedule(SchedulerConfig::default());
        for (guidance, says, batch) in [(1.0, 2.0, 2), (3.0, 0.5 + 3.0 * 1.5, 4)] {
            let network = MeanOfText(Default::default());
            let sampler = Sampler::new(SamplerMethod::Ddim, &plain, 1).unwrap();
            let conditioning = Conditioning { text: &text, unconditional: &empty, guidance_scale: guidance };
            let found = sample_latents(&network, sampler, &noise, &conditioning, |_| ()).unwrap();
            let output = Tensor::full_like(&noise, says);
            let expected =
                Sampler::new(SamplerMethod::Ddim, &plain, 1).unwrap().step(&output, &noise).unwrap();
            assert!(found.allclose(&expected, 1e-6, 1e-6, false));
            assert_eq!(network.0.into_inner(), [batch]);
        }
    }
}
