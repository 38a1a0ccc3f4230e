//! The sampling loop: from noise to latents, with classifier-free guidance.

use tch::Tensor;

use super::stepper::Sampler;
use crate::denoiser::{Conditions, Denoiser};
use crate::error::Error;

/// What a sample is conditioned on.
pub struct Conditioning<'a> {
    /// Those of N prompts.
    pub conditions: &'a Conditions,
    /// Those of the empty or negative prompt, of one row or N.
    pub unconditional: &'a Conditions,
    /// The scale of classifier-free guidance (Ho & Salimans, 2022); 1 switches guidance off.
    pub guidance_scale: f64,
}

/// Denoises `noise` [N, C, h, w] to latents in the U-Net's scale; divide them by the VAE's scaling
/// factor before decoding. Calls `on_step` with the number of steps taken after each step.
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
    let is_guided = conditioning.guidance_scale != 1.0;
    let conditions = tidemill_torch::guard(|| match is_guided {
        true => expand_to_batch(conditioning.unconditional, noise.size()[0]).concat(conditioning.conditions),
        false => conditioning.conditions.shallow_clone(),
    })?;
    let kind = conditions.text.kind();
    let mut latents = tidemill_torch::guard(|| sampler.initial_sample(noise))?;
    for i in 0..sampler.timesteps().len() {
        let prediction = tidemill_torch::guard(|| {
            tch::no_grad(|| {
                let scaled = sampler.scale_input(&latents);
                let input = if is_guided { Tensor::cat(&[&scaled, &scaled], 0) } else { scaled };
                let timesteps = sampler.timesteps().batch(i, input.size()[0], input.device());
                let output = denoiser.denoise(&input.to_kind(kind), &timesteps, &conditions);
                let output = output.to_kind(latents.kind());
                if !is_guided {
                    return output;
                }
                let halves = output.chunk(2, 0);
                &halves[0] + (&halves[1] - &halves[0]) * conditioning.guidance_scale
            })
        })?;
        latents = sampler.step(&prediction, &latents)?;
        on_step(i + 1);
    }
    Ok(latents)
}

/// Conditions of one row or n, as those of n.
fn expand_to_batch(unconditional: &Conditions, n: i64) -> Conditions {
    unconditional.map(|tensor| {
        let mut size = tensor.size();
        size[0] = n;
        tensor.expand(size, false)
    })
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;
    use crate::sampler::SamplerMethod;
    use crate::{NoiseSchedule, SchedulerConfig};

    /// With the predictions a for the text and b for the empty prompt, a step gets b + g (a - b).
    /// With g = 1 the network does not run on the empty prompt.
    #[test]
    fn guidance_extrapolates_from_the_unconditional_prediction() {
        /// Predicts the mean of the text embedding; notes batch sizes.
        struct MeanOfText(std::cell::RefCell<Vec<i64>>);
        impl Denoiser for MeanOfText {
            fn denoise(&self, sample: &Tensor, timesteps: &Tensor, conditions: &Conditions) -> Tensor {
                self.0.borrow_mut().push(timesteps.size()[0]);
                let mean =
                    conditions.text.mean_dim([1i64, 2].as_slice(), false, Kind::Float).reshape([-1, 1, 1, 1]);
                mean.expand_as(sample)
            }
        }
        let options = (Kind::Float, Device::Cpu);
        let [text, empty] = [(2, 2.0), (1, 0.5)]
            .map(|(n, value)| Conditions::from_text(Tensor::full([n, 3, 4], value, options)));
        let noise = Tensor::randn([2, 1, 2, 2], options);
        let plain = NoiseSchedule::new(SchedulerConfig::default(), Device::Cpu);
        for (guidance_scale, expected_output, batch_size) in [(1.0, 2.0, 2), (3.0, 0.5 + 3.0 * 1.5, 4)] {
            let network = MeanOfText(Default::default());
            let sampler = Sampler::new(SamplerMethod::Ddim, &plain, 1, 1).unwrap();
            let conditioning = Conditioning { conditions: &text, unconditional: &empty, guidance_scale };
            let found = sample_latents(&network, sampler, &noise, &conditioning, |_| ()).unwrap();
            let output = Tensor::full_like(&noise, expected_output);
            let expected =
                Sampler::new(SamplerMethod::Ddim, &plain, 1, 1).unwrap().step(&output, &noise).unwrap();
            assert!(found.allclose(&expected, 1e-6, 1e-6, false));
            assert_eq!(network.0.into_inner(), [batch_size]);
        }
    }
}
