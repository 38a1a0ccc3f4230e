//! Samplers against diffusers' DDIM, flow-matching, DPM-Solver and EDM schedulers: timesteps, single steps, and
//! whole runs.

use super::cases::{cases, folder, json};
use super::compare::{Maximum, largest_magnitude};
use serde_json::Value;
use tch::{Device, Kind, Tensor};
use tidemill_models::sampler::{Conditioning, Sampler, SamplerMethod, Timesteps, sample_latents};
use tidemill_models::{BetaSchedule, Conditions, NoiseSchedule, SchedulerConfig, UNet2DConditionModel};

fn method(json: &Value) -> SamplerMethod {
    serde_json::from_value(json["method"].clone()).unwrap()
}

fn step_count(json: &Value) -> usize {
    usize::try_from(json["steps"].as_u64().unwrap()).unwrap()
}

#[test]
fn timesteps_agree_with_diffusers_for_every_number_of_steps() {
    let table = json(&folder("timesteps").join("table.json"));
    let mut compared = 0;
    for row in table.as_array().unwrap() {
        let config = SchedulerConfig {
            timestep_spacing: serde_json::from_value(row["spacing"].clone()).unwrap(),
            steps_offset: row["offset"].as_i64().unwrap(),
            beta_schedule: BetaSchedule::ScaledLinear,
            ..SchedulerConfig::default()
        };
        let schedule = NoiseSchedule::new(config.clone(), Device::Cpu);
        for (steps, expected) in row["timesteps"].as_object().unwrap() {
            let sampler = Sampler::new(method(row), &schedule, steps.parse().unwrap(), 1).unwrap();
            let expected: Vec<i64> = serde_json::from_value(expected.clone()).unwrap();
            let about = || format!("{:?} {config:?} {steps}", method(row));
            assert_eq!(*sampler.timesteps(), Timesteps::Discrete(expected), "{}", about());
            compared += 1;
        }
    }
    println!("timesteps: {compared} lists are equal");
}

#[test]
fn every_step_agrees_with_diffusers() {
    let mut inputs = Maximum::new("inputs of the network, step by step", 1e-5);
    let mut samples = Maximum::new("samples, step by step", 1e-5);
    let cases = cases("sampler");
    for case in &cases {
        let config = SchedulerConfig::read(&case.dir.join("scheduler_config.json")).unwrap();
        let (about, schedule) = (case.json(), NoiseSchedule::new(config.clone(), Device::Cpu));
        let image_seq_len = about["image_seq_len"].as_i64().unwrap();
        let mut sampler = Sampler::new(method(&about), &schedule, step_count(&about), image_seq_len).unwrap();
        for step in 0..step_count(&about) {
            // diffusers has those of DPM-Solver for flows as integers.
            let expected = case.tensor("timesteps").get(step as i64).to_kind(Kind::Double);
            let found = sampler.timesteps().batch(step, 1, Device::Cpu).to_kind(Kind::Double);
            assert!(found.allclose(&expected, 1e-6, 1e-6, false), "{about} {config:?}: {found} {expected}");
        }
        let mut sample = sampler.initial_sample(case.tensor("noise"));
        for step in 0..step_count(&about) {
            let at = i64::try_from(step).unwrap();
            let expected = case.tensor("inputs").get(at);
            inputs.check(&sampler.scale_input(&sample), &expected, || format!("step {step} of {about}"));
            let found = sampler.step(&case.tensor("outputs").get(at), &sample).unwrap();
            let expected = case.tensor("samples").get(at);
            // For EDM diffusers subtracts numbers as large as the sample before the step, up to 200, and leaves 1: its
            // own rounding is relative to them, and is not carried on.
            let min_scale = if config.edm.is_some() { largest_magnitude(&sample) } else { 0.0 };
            samples
                .check_within(&found, &expected, min_scale, || format!("step {step} of {about} {config:?}"));
            sample = if config.edm.is_some() { expected } else { found };
        }
    }
    assert_eq!(cases.len(), 104);
    [inputs, samples].iter().for_each(Maximum::print);
}

#[test]
fn guided_sampling_agrees_with_diffusers() {
    // Deviations of the network add up over the steps, multiplied by the guidance scale.
    let mut latents = Maximum::new("latents after a guided run", 2e-4);
    for case in cases("guided") {
        let unet = UNet2DConditionModel::load(&case.dir, Device::Cpu).unwrap();
        let config = SchedulerConfig::read(&case.dir.join("scheduler_config.json")).unwrap();
        let (about, schedule) = (case.json(), NoiseSchedule::new(config, Device::Cpu));
        let sampler = Sampler::new(method(&about), &schedule, step_count(&about), 1).unwrap();
        let [text, empty] =
            ["text", "empty"].map(|name| Conditions::from_text(case.tensor(name).shallow_clone()));
        let conditioning = Conditioning {
            conditions: &text,
            unconditional: &empty,
            guidance_scale: about["guidance"].as_f64().unwrap(),
        };
        let mut steps = Vec::new();
        let noise: &Tensor = case.tensor("noise");
        let found = sample_latents(&unet, sampler, noise, &conditioning, |step| steps.push(step)).unwrap();
        assert_eq!(steps, (1..=step_count(&about)).collect::<Vec<_>>());
        latents.check(&found, case.tensor("latents"), || format!("{about} of {}", case.label()));
    }
    latents.print();
}
