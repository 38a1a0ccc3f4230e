//! One training step of every U-Net: loss, and the gradient of every parameter, by name.

use crate::cases::{Case, cases};
use crate::compare::{Maximum, largest};
use std::collections::HashSet;
use tch::{Device, Reduction, Tensor};
use tidemill_models::{Denoiser, NoiseSchedule, SchedulerConfig, TrainableDenoiser, UNet2DConditionModel};

/// Of a network's largest gradient: those of attention's queries and keys are sometimes nothing but rounding.
const LEAST: f64 = 1e-4;

#[test]
fn loss_and_every_gradient_are_pytorchs() {
    let mut losses = Maximum::new("loss", 1e-5);
    let mut gradients = Maximum::new("gradients", 2e-4);
    let mut again = Maximum::new("gradients with gradient checkpointing", 2e-4);
    let mut count = 0;
    for case in cases("unet") {
        let mut unet = UNet2DConditionModel::load(&case.dir, Device::Cpu).unwrap();
        unet.params().set_trainable(true);
        let loss = training_step(&unet, &case);
        losses.check(&loss, case.tensor("loss"), || case.label());
        let named = unet.params().named_parameters();
        let names: HashSet<&str> = named.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, case.names("grad.").into_iter().collect(), "{}", case.label());
        let least = LEAST * named.iter().map(|(_, one)| largest(&one.grad())).fold(0.0, f64::max);
        for (name, parameter) in &named {
            let expected = case.tensor(&format!("grad.{name}"));
            let at = || format!("{name} of {}", case.label());
            gradients.check_within(&parameter.grad(), expected, least, at);
        }
        check_computed_again(&mut unet, &case, &mut again);
        count += named.len();
    }
    losses.print();
    gradients.print();
    again.print();
    println!("{count} gradients compared");
}

/// Gradient checkpointing changes nothing but the order in which some gradients are added up.
fn check_computed_again(unet: &mut UNet2DConditionModel, case: &Case, again: &mut Maximum) {
    let named = unet.params().named_parameters();
    let kept: Vec<Tensor> = named.iter().map(|(_, parameter)| parameter.grad().copy()).collect();
    named.iter().for_each(|(_, parameter)| drop(parameter.grad().zero_()));
    unet.set_gradient_checkpointing(true).unwrap();
    drop(training_step(unet, case));
    let least = LEAST * kept.iter().map(largest).fold(0.0, f64::max);
    for ((name, parameter), kept) in named.iter().zip(&kept) {
        again.check_within(&parameter.grad(), kept, least, || format!("{name} of {}", case.label()));
    }
}

fn training_step(unet: &UNet2DConditionModel, case: &Case) -> Tensor {
    let config = SchedulerConfig::read(&case.dir.join("scheduler_config.json")).unwrap();
    let schedule = NoiseSchedule::new(config, Device::Cpu);
    let (latents, noise) = (case.tensor("latents"), case.tensor("noise"));
    let timesteps = case.tensor("timesteps");
    let noisy = schedule.add_noise(latents, noise, timesteps);
    let target = schedule.target(latents, noise, timesteps);
    let loss = unet.denoise(&noisy, timesteps, case.tensor("text")).mse_loss(&target, Reduction::Mean);
    loss.backward();
    loss.detach()
}
