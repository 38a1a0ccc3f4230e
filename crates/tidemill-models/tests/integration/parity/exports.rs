//! Folders that this crate writes, opened by diffusers and transformers (`open_exports.py`).

use super::cases::{folder, python, seed};
use tch::{Device, Kind, Tensor};
use tidemill_models::sampler::{Conditioning, Sampler, SamplerMethod, sample_latents};
use tidemill_models::{
    AutoencoderKl, ClipTextModel, Conditions, DenoiserConfig, DynamicShift, EdmConfig, FlowShift,
    ModelFolder, NoiseSchedule, ParamInit, PredictionType, SchedulerConfig, UNet2DConditionModel, Variant,
};

/// Exports a U-Net with new weights, saves the other networks, and samples with all of them.
#[test]
fn diffusers_opens_exports_and_samples_the_same_latents() {
    let source = ModelFolder::open(folder("pipeline")).unwrap();
    let out = folder("written");
    tch::manual_seed(seed());
    let config = tidemill_models::UNetConfig::read(&source.unet().join("config.json")).unwrap();
    let unet = UNet2DConditionModel::new(config, Device::Cpu, ParamInit::Random).unwrap();
    let diffusion = source.scheduler().unwrap();
    let flow = SchedulerConfig {
        prediction_type: PredictionType::FlowPrediction,
        flow_shift: FlowShift::Fixed(3.0),
        ..diffusion.clone()
    };
    let sigma_data = 0.8;
    let edm = SchedulerConfig {
        edm: Some(EdmConfig { sigma_data, ..EdmConfig::default() }),
        ..SchedulerConfig::default()
    };
    for (name, scheduler) in [("export", &diffusion), ("export-flow", &flow), ("export-edm", &edm)] {
        let (config, weights) =
            (DenoiserConfig::UNet(unet.config().clone()), unet.params().named_parameters());
        source.export(&out.join(name), &config, weights, scheduler, Variant::F32).unwrap();
        let written = SchedulerConfig::read(&out.join(name).join("scheduler/scheduler_config.json")).unwrap();
        assert_eq!(written, *scheduler);
    }
    unet.save(&out.join("unet")).unwrap();
    AutoencoderKl::load(&source.vae(), Device::Cpu, Kind::Float).unwrap().save(&out.join("vae")).unwrap();
    let text_encoder = ClipTextModel::load(&source.text_encoder(), Device::Cpu, Kind::Float).unwrap();
    text_encoder.save(&out.join("text_encoder")).unwrap();
    // Written by tch, so that the comparison does not rely on this crate's own writer.
    Tensor::write_safetensors(&unet.params().named_parameters(), out.join("unet.safetensors")).unwrap();

    let options = (Kind::Float, Device::Cpu);
    let width = unet.config().cross_attention_dim;
    let (text, empty) = (Tensor::randn([2, 5, width], options), Tensor::randn([2, 5, width], options));
    let noise = Tensor::randn([2, unet.config().in_channels, 8, 8], options);
    let [conditions, unconditional] = [&text, &empty].map(|text| Conditions::from_text(text.shallow_clone()));
    let conditioning =
        Conditioning { conditions: &conditions, unconditional: &unconditional, guidance_scale: 4.0 };
    let sample = |method, scheduler| {
        let sampler = Sampler::new(method, &NoiseSchedule::new(scheduler, Device::Cpu), 5, 1).unwrap();
        sample_latents(&unet, sampler, &noise, &conditioning, |_| ()).unwrap()
    };
    let latents = sample(SamplerMethod::Ddim, diffusion);
    let dynamic = FlowShift::Dynamic(DynamicShift::default());
    export_as_fixed(&source, &unet, &SchedulerConfig { flow_shift: dynamic, ..flow.clone() });
    let flow_latents = sample(SamplerMethod::DpmPlusPlus2M, flow);
    let edm_latents = sample(SamplerMethod::Ddim, edm);
    let run = [
        ("text", text),
        ("empty", empty),
        ("noise", noise),
        ("latents", latents),
        ("flow_latents", flow_latents),
        ("edm_latents", edm_latents),
    ];
    Tensor::write_safetensors(&run, out.join("run.safetensors")).unwrap();

    python("open_exports.py", &[folder("").to_str().unwrap()]);
}

/// A pipeline without a shift by size gets the shift of images of the U-Net's size.
fn export_as_fixed(source: &ModelFolder, unet: &UNet2DConditionModel, dynamic: &SchedulerConfig) {
    let out = tempfile::tempdir().unwrap();
    let config = DenoiserConfig::UNet(unet.config().clone());
    let tokens = (config.sample_size() / 2).pow(2);
    source.export(out.path(), &config, unet.params().named_parameters(), dynamic, Variant::F32).unwrap();
    let written = SchedulerConfig::read(&out.path().join("scheduler/scheduler_config.json")).unwrap();
    assert_eq!(written.flow_shift, FlowShift::Fixed(dynamic.flow_shift.for_image(tokens)));
}
