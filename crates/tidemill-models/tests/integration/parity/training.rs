//! One training step of every U-Net and transformer: the loss, and the gradient of every parameter.

use super::cases::{Case, cases};
use super::compare::{Maximum, largest_magnitude};
use std::collections::HashSet;
use tch::{Device, Reduction, Tensor};
use tidemill_models::{
    GradientCheckpointing, NoiseSchedule, SD3Transformer2DModel, SchedulerConfig, TrainableDenoiser,
    UNet2DConditionModel,
};

/// Gradients are compared relative to at min_scale this share of a network's largest_magnitude
/// gradient: the gradients of attention's queries and keys are sometimes rounding errors only.
const MIN_SCALE: f64 = 1e-4;

#[test]
fn loss_and_gradients_agree_with_pytorch() {
    let mut losses = Maximum::new("loss", 1e-5);
    let mut gradients = Maximum::new("gradients", 2e-4);
    let mut checkpointed = Maximum::new("gradients with gradient checkpointing", 2e-4);
    let mut count = 0;
    for (case, mut network) in networks() {
        network.params().set_requires_grad(true);
        let loss = training_step(&*network, &case);
        losses.check(&loss, case.tensor("loss"), || case.label());
        let named = network.params().named_parameters();
        let names: HashSet<&str> = named.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, case.names("grad.").into_iter().collect(), "{}", case.label());
        let min_scale = MIN_SCALE
            * named.iter().map(|(_, parameter)| largest_magnitude(&parameter.grad())).fold(0.0, f64::max);
        for (name, parameter) in &named {
            let expected = case.tensor(&format!("grad.{name}"));
            let at = || format!("{name} of {}", case.label());
            gradients.check_within(&parameter.grad(), expected, min_scale, at);
        }
        for mode in [GradientCheckpointing::Selective, GradientCheckpointing::Full] {
            check_gradient_checkpointing(&mut *network, mode, &case, &mut checkpointed);
        }
        count += named.len();
    }
    losses.print();
    gradients.print();
    checkpointed.print();
    println!("{count} gradients compared");
}

/// Gradient checkpointing must only change the order in which some gradients are added up.
fn check_gradient_checkpointing(
    network: &mut dyn TrainableDenoiser,
    mode: GradientCheckpointing,
    case: &Case,
    checkpointed: &mut Maximum,
) {
    let named = network.params().named_parameters();
    let expected: Vec<Tensor> = named.iter().map(|(_, parameter)| parameter.grad().copy()).collect();
    named.iter().for_each(|(_, parameter)| drop(parameter.grad().zero_()));
    network.set_gradient_checkpointing(mode).unwrap();
    drop(training_step(network, case));
    let min_scale = MIN_SCALE * expected.iter().map(largest_magnitude).fold(0.0, f64::max);
    for ((name, parameter), expected) in named.iter().zip(&expected) {
        checkpointed.check_within(&parameter.grad(), expected, min_scale, || {
            format!("{name} of {}, {mode:?}", case.label())
        });
    }
}

/// The networks of all cases.
fn networks() -> impl Iterator<Item = (Case, Box<dyn TrainableDenoiser>)> {
    let unets = cases("unet").into_iter().map(|case| {
        let unet = UNet2DConditionModel::load(&case.dir, Device::Cpu).unwrap();
        (case, Box::new(unet) as Box<dyn TrainableDenoiser>)
    });
    let transformers = cases("transformer").into_iter().map(|case| {
        let transformer = SD3Transformer2DModel::load(&case.dir, Device::Cpu).unwrap();
        (case, Box::new(transformer) as Box<dyn TrainableDenoiser>)
    });
    unets.chain(transformers)
}

fn training_step(network: &dyn TrainableDenoiser, case: &Case) -> Tensor {
    let config = SchedulerConfig::read(&case.dir.join("scheduler_config.json")).unwrap();
    let schedule = NoiseSchedule::new(config, Device::Cpu);
    let (latents, noise) = (case.tensor("latents"), case.tensor("noise"));
    let timesteps = case.tensor("timesteps");
    let levels = schedule.levels(timesteps, 1);
    let (noisy, target) = (levels.add_noise(latents, noise), levels.target(latents, noise));
    let prediction = network.denoise(&noisy, &levels.network_timesteps(), &case.conditions());
    let loss = prediction.mse_loss(&target, Reduction::Mean);
    loss.backward();
    loss.detach()
}
