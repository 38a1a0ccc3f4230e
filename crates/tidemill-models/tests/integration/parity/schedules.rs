//! Noise schedules against DDPMScheduler, FlowMatchEulerDiscreteScheduler and EDMEulerScheduler.

use super::cases::cases;
use super::compare::Maximum;
use tch::{Device, Kind, Tensor};
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
        let levels = schedule.levels(timesteps, 1);
        noisy.check(&levels.add_noise(latents, noise), case.tensor("noisy"), at);
        target.check(&levels.target(latents, noise), case.tensor("target"), at);
        let gamma = case.json()["gamma"].as_f64().unwrap();
        let all = Tensor::arange(config.num_train_timesteps, (Kind::Int64, Device::Cpu));
        let found = schedule.levels(&all, 1).min_snr_weights(gamma);
        let expected = case.tensor("min_snr_weights");
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
    let (fixed, dynamic) = (cases("flow"), cases("dynamic-flow"));
    for case in fixed.iter().chain(&dynamic) {
        let config = SchedulerConfig::read(&case.dir.join("scheduler_config.json")).unwrap();
        let at = || format!("{config:?}");
        let schedule = NoiseSchedule::new(config.clone(), Device::Cpu);
        let [latents, noise, timesteps] = ["latents", "noise", "timesteps"].map(|name| case.tensor(name));
        let levels = schedule.levels(timesteps, case.json()["image_seq_len"].as_i64().unwrap());
        noisy.check(&levels.add_noise(latents, noise), case.tensor("noisy"), at);
        target.check(&levels.target(latents, noise), case.tensor("target"), at);
        let expected = case.tensor("network_timesteps");
        network_timesteps.check(&levels.network_timesteps(), expected, at);
        // An error of the flow times sigma is one of the latents.
        let weights = levels.min_snr_weights(1e9);
        let signal: Tensor = 1.0 - expected / config.num_train_timesteps;
        assert!(weights.allclose(&signal.square(), 1e-4, 1e-6, false), "{}", at());
    }
    assert_eq!([fixed.len(), dynamic.len()], [4, 4]);
    [noisy, target, network_timesteps].iter().for_each(Maximum::print);
}

/// The network's inputs, and the loss of random outputs, as diffusers' script computes it from the preconditioned
/// outputs with EDM's weights.
#[test]
fn edm_agrees_with_diffusers() {
    let mut input = Maximum::new("inputs of EDM", 1e-5);
    let mut network_timesteps = Maximum::new("timesteps of EDM", 1e-5);
    let mut loss = Maximum::new("losses of EDM", 1e-4);
    let cases = cases("edm");
    for case in &cases {
        let config = SchedulerConfig::read(&case.dir.join("scheduler_config.json")).unwrap();
        let at = || format!("{config:?}");
        let schedule = NoiseSchedule::new(config.clone(), Device::Cpu);
        let [latents, noise, timesteps] = ["latents", "noise", "timesteps"].map(|name| case.tensor(name));
        let levels = schedule.levels(timesteps, 1);
        input.check(&levels.add_noise(latents, noise), case.tensor("input"), at);
        network_timesteps.check(&levels.network_timesteps(), case.tensor("network_timesteps"), at);
        let errors = (case.tensor("output") - levels.target(latents, noise)).square();
        let found = errors.mean_dim(&[1i64, 2, 3][..], false, Kind::Float);
        loss.check(&found, case.tensor("loss"), at);
        // With no bound, min-SNR weighs an error of the latents by 1 / sigma^2; EDM does by that and 1 / sigma_data^2.
        let data = config.edm.unwrap().sigma_data.powi(2);
        let variance: Tensor = (case.tensor("network_timesteps") * 4.0).exp().square();
        let expected: Tensor = data / (variance + data);
        assert!(levels.min_snr_weights(1e9).allclose(&expected, 1e-3, 1e-6, false), "{}", at());
    }
    assert_eq!(cases.len(), 4);
    [input, network_timesteps, loss].iter().for_each(Maximum::print);
}
