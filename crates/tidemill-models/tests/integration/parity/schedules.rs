//! Noise schedules against DDPMScheduler and FlowMatchEulerDiscreteScheduler.

use super::cases::cases;
use super::compare::Maximum;
use tch::{Device, Tensor};
use tidemill_models::{NoiseSchedule, SchedulerConfig};

#[test]
fn noise_schedules_targets_and_min_snr_weights_agree_with_diffusers() {
    let mut table = Maximum::new("alphas_cumprod", 1e-6);
    let mut noisy = Maximum::new("add_noise", 1e-6);
    let mut target = Maximum::new("targets", 1e-6);
    let mut weights = Maximum::new("min-SNR weights", 1e-5);
    let cases = cases("schedule");
    for case in &cases {
        let config = SchedulerConfig::read(&case.dir.join("scheduler_config.json")).unwrap();
        let at = || format!("{config:?}");
        let schedule = NoiseSchedule::new(config.clone(), Device::Cpu);
        table.check(schedule.alphas_cumprod().unwrap(), case.tensor("alphas_cumprod"), at);
        let [latents, noise, timesteps] = ["latents", "noise", "timesteps"].map(|name| case.tensor(name));
        noisy.check(&schedule.add_noise(latents, noise, timesteps), case.tensor("noisy"), at);
        target.check(&schedule.target(latents, noise, timesteps), case.tensor("target"), at);
        let gamma = case.json()["gamma"].as_f64().unwrap();
        let (found, expected) = (schedule.min_snr_weights(gamma), case.tensor("min_snr_weights"));
        // At a timestep without signal diffusers divides 0 by 0.
        weights.check(&found, &expected.nan_to_num(1.0, None, None), at);
    }
    assert_eq!(cases.len(), 8);
    [table, noisy, target, weights].iter().for_each(Maximum::print);
}

/// The inputs of a step of SD3's training script, for the same draws.
#[test]
fn rectified_flow_agrees_with_diffusers() {
    let mut noisy = Maximum::new("noisy latents of flows", 1e-6);
    let mut target = Maximum::new("targets of flows", 1e-6);
    let mut network_timesteps = Maximum::new("timesteps of flows", 1e-6);
    let cases = cases("flow");
    for case in &cases {
        let config = SchedulerConfig::read(&case.dir.join("scheduler_config.json")).unwrap();
        let at = || format!("{config:?}");
        let schedule = NoiseSchedule::new(config.clone(), Device::Cpu);
        let [latents, noise, timesteps] = ["latents", "noise", "timesteps"].map(|name| case.tensor(name));
        noisy.check(&schedule.add_noise(latents, noise, timesteps), case.tensor("noisy"), at);
        target.check(&schedule.target(latents, noise, timesteps), case.tensor("target"), at);
        let expected = case.tensor("network_timesteps");
        network_timesteps.check(&schedule.network_timesteps(timesteps), expected, at);
        // An error of the flow times sigma is one of the latents.
        let weights = schedule.min_snr_weights(1e9).index_select(0, timesteps);
        let signal: Tensor = 1.0 - expected / config.num_train_timesteps;
        assert!(weights.allclose(&signal.square(), 1e-4, 1e-6, false), "{}", at());
    }
    assert_eq!(cases.len(), 4);
    [noisy, target, network_timesteps].iter().for_each(Maximum::print);
}
