//! The outputs of the three networks in f32, from the same weights and inputs as in Python.

use super::cases::cases;
use super::compare::Maximum;
use tch::{Device, Kind, Tensor};
use tidemill_models::{
    AutoencoderKl, ClipTextModel, Conditions, Denoiser, NoiseSchedule, SD3Transformer2DModel, SampleShape,
    SchedulerConfig, T5EncoderModel, TrainableDenoiser, UNet2DConditionModel,
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
        let (scale, about) = (vae.config().latent_scale(), case.json());
        assert_eq!(Some(scale.factor), about["scaling_factor"].as_f64());
        assert_eq!(Some(scale.shift), about["shift_factor"].as_f64());
    }
    moments.print();
    decoded.print();
}

#[test]
fn text_encoder_hidden_states_agree_with_transformers() {
    let mut hidden = Maximum::new("text hidden states", LIMIT);
    let mut penultimate = Maximum::new("text penultimate hidden states", LIMIT);
    let mut pooled = Maximum::new("pooled text", LIMIT);
    let mut pooled_cases = 0;
    for case in cases("text") {
        let encoder = ClipTextModel::load(&case.dir, Device::Cpu, Kind::Float).unwrap();
        let ids = case.tensor("ids");
        hidden.check(&encoder.forward(ids), case.tensor("hidden"), || case.label());
        let output = encoder.forward_penultimate(ids);
        penultimate.check(&output.penultimate, case.tensor("penultimate"), || case.label());
        assert_eq!(output.pooled.is_some(), !case.names("pooled").is_empty(), "{}", case.label());
        if let Some(found) = output.pooled {
            pooled.check(&found, case.tensor("pooled"), || case.label());
            pooled_cases += 1;
        }
    }
    assert_eq!(pooled_cases, 6);
    hidden.print();
    penultimate.print();
    pooled.print();
}

#[test]
fn t5_hidden_states_agree_with_transformers() {
    let mut hidden = Maximum::new("T5 hidden states", LIMIT);
    for case in cases("t5") {
        let encoder = T5EncoderModel::load(&case.dir, Device::Cpu, Kind::Float).unwrap();
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
        let levels = schedule.levels(timesteps, 1);
        let noisy = levels.add_noise(case.tensor("latents"), case.tensor("noise"));
        let conditions = case.conditions();
        let found = unet.denoise(&noisy, &levels.network_timesteps(), &conditions);
        output.check(&found, case.tensor("output"), || case.label());
        let flops = noisy.size()[0] as u64 * unet.forward_flops(shape_of(&noisy, &conditions)).unwrap();
        assert_eq!(flops, case.json()["flops"].as_u64().unwrap(), "{}", case.label());
    }
    output.print();
}

#[test]
fn transformer_output_and_flops_agree_with_diffusers() {
    let mut output = Maximum::new("transformer output", LIMIT);
    let mut saved = 0;
    for case in cases("transformer") {
        let transformer = SD3Transformer2DModel::load(&case.dir, Device::Cpu).unwrap();
        let scheduler = SchedulerConfig::read(&case.dir.join("scheduler_config.json")).unwrap();
        let schedule = NoiseSchedule::new(scheduler, Device::Cpu);
        let timesteps = case.tensor("timesteps");
        let levels = schedule.levels(timesteps, 1);
        let noisy = levels.add_noise(case.tensor("latents"), case.tensor("noise"));
        let (conditions, timesteps) = (case.conditions(), levels.network_timesteps());
        let found = transformer.denoise(&noisy, &timesteps, &conditions);
        output.check(&found, case.tensor("output"), || case.label());
        let flops =
            noisy.size()[0] as u64 * transformer.forward_flops(shape_of(&noisy, &conditions)).unwrap();
        assert_eq!(flops, case.json()["flops"].as_u64().unwrap(), "{}", case.label());

        let copy = tempfile::tempdir().unwrap();
        transformer.save(copy.path()).unwrap();
        let reopened = SD3Transformer2DModel::load(copy.path(), Device::Cpu).unwrap();
        assert!(reopened.denoise(&noisy, &timesteps, &conditions).equal(&found));
        saved += 1;
    }
    assert_eq!(saved, 12);
    output.print();
}

/// The shapes of a sample's inputs.
fn shape_of(noisy: &Tensor, conditions: &Conditions) -> SampleShape {
    let (latents, text) = (noisy.size(), conditions.text.size());
    SampleShape {
        latents: [latents[1], latents[2], latents[3]],
        text: [text[1], text[2]],
        pooled: conditions.pooled.as_ref().map(|pooled| pooled.size()[1]),
        has_time_ids: conditions.time_ids.is_some(),
    }
}

/// In bf16 the libraries agree only to the precision of bf16, so values are not compared.
#[test]
fn denoisers_run_in_bf16() {
    for case in cases("transformer") {
        let transformer = SD3Transformer2DModel::load(&case.dir, Device::Cpu).unwrap();
        transformer.params().set_kind(Kind::BFloat16);
        let bf16 = |name| case.tensor(name).to_kind(Kind::BFloat16);
        let conditions = case.conditions().map(|tensor| tensor.to_kind(Kind::BFloat16));
        let found = transformer.denoise(&bf16("latents"), case.tensor("network_timesteps"), &conditions);
        assert_eq!(found.kind(), Kind::BFloat16, "{}", case.label());
        assert_eq!(found.isfinite().all().int64_value(&[]), 1, "{}", case.label());
    }
    for case in cases("unet") {
        let unet = UNet2DConditionModel::load(&case.dir, Device::Cpu).unwrap();
        unet.params().set_kind(Kind::BFloat16);
        let bf16 = |name| case.tensor(name).to_kind(Kind::BFloat16);
        let conditions = Conditions { text: bf16("text"), ..case.conditions() };
        let found = unet.denoise(&bf16("latents"), case.tensor("timesteps"), &conditions);
        assert_eq!(found.kind(), Kind::BFloat16, "{}", case.label());
        assert_eq!(found.isfinite().all().int64_value(&[]), 1, "{}", case.label());
    }
}
