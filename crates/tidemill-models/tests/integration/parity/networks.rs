//! The outputs of the three networks in f32, from the same weights and inputs as in Python.

use super::cases::cases;
use super::compare::Maximum;
use tch::{Device, Kind};
use tidemill_models::{
    AutoencoderKl, ClipTextModel, Denoiser, NoiseSchedule, SampleShape, SchedulerConfig, TrainableDenoiser,
    UNet2DConditionModel,
};

/// Ten times stricter than what a user would notice, so that a wrong epsilon is found.
const LIMIT: f64 = 2e-5;

#[test]
fn vae_moments_and_images_agree_with_diffusers() {
    let (mut moments, mut decoded) =
        (Maximum::new("VAE moments", LIMIT), Maximum::new("VAE decoding", LIMIT));
    for case in cases("vae") {
        let vae = AutoencoderKl::load(&case.dir, Device::Cpu, Kind::Float).unwrap();
        moments.check(&vae.encode(case.tensor("images")), case.tensor("moments"), || case.label());
        decoded.check(&vae.decode(case.tensor("latents")), case.tensor("decoded"), || case.label());
        assert_eq!(vae.config().scaling_factor, case.json()["scaling_factor"].as_f64().unwrap());
    }
    moments.print();
    decoded.print();
}

#[test]
fn text_encoder_hidden_states_agree_with_transformers() {
    let mut hidden = Maximum::new("text hidden states", LIMIT);
    for case in cases("text") {
        let encoder = ClipTextModel::load(&case.dir, Device::Cpu, Kind::Float).unwrap();
        hidden.check(&encoder.forward(case.tensor("ids")), case.tensor("hidden"), || case.label());
    }
    hidden.print();
}

#[test]
fn unet_output_and_flops_agree_with_diffusers() {
    let mut output = Maximum::new("U-Net output", LIMIT);
    for case in cases("unet") {
        let unet = UNet2DConditionModel::load(&case.dir, Device::Cpu).unwrap();
        let scheduler = SchedulerConfig::read(&case.dir.join("scheduler_config.json")).unwrap();
        let schedule = NoiseSchedule::new(scheduler, Device::Cpu);
        let timesteps = case.tensor("timesteps");
        let noisy = schedule.add_noise(case.tensor("latents"), case.tensor("noise"), timesteps);
        let found = unet.denoise(&noisy, &schedule.network_timesteps(timesteps), case.tensor("text"));
        output.check(&found, case.tensor("output"), || case.label());
        let (latents, text) = (noisy.size(), case.tensor("text").size());
        let shape = SampleShape { latents: [latents[1], latents[2], latents[3]], text: [text[1], text[2]] };
        let flops = latents[0] as u64 * unet.forward_flops(shape).unwrap();
        assert_eq!(flops, case.json()["flops"].as_u64().unwrap(), "{}", case.label());
    }
    output.print();
}

/// In bf16 the libraries agree only to the precision of bf16, so values are not compared.
#[test]
fn unet_runs_in_bf16() {
    for case in cases("unet") {
        let unet = UNet2DConditionModel::load(&case.dir, Device::Cpu).unwrap();
        unet.params().set_kind(Kind::BFloat16);
        let bf16 = |name| case.tensor(name).to_kind(Kind::BFloat16);
        let found = unet.denoise(&bf16("latents"), case.tensor("timesteps"), &bf16("text"));
        assert_eq!(found.kind(), Kind::BFloat16, "{}", case.label());
        assert_eq!(found.isfinite().all().int64_value(&[]), 1, "{}", case.label());
    }
}
