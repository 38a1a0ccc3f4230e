//! The configurations of published Stable Diffusion folders open, and the networks built from them
//! have the published numbers of parameters.
//!
//! A binary of its own, because it checks the peak memory of the process: nothing is initialised,
//! so hardly any memory is touched.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tch::Device;
use tidemill_models::{
    AutoencoderKl, BetaSchedule, ClipTextConfig, ClipTextModel, ParamInit, PredictionType,
    SD3Transformer2DModel, SD3TransformerConfig, SchedulerConfig, T5Config, T5EncoderModel, TimestepSpacing,
    UNet2DConditionModel, UNetConfig, VaeConfig,
};

fn write(dir: &Path, config: &Value) -> PathBuf {
    let path = dir.join("config.json");
    std::fs::write(&path, config.to_string()).unwrap();
    path
}

/// stabilityai/stable-diffusion-2-base, unet/config.json.
fn sd2_unet() -> Value {
    json!({
        "_class_name": "UNet2DConditionModel",
        "_diffusers_version": "0.10.0.dev0",
        "act_fn": "silu",
        "attention_head_dim": [5, 10, 20, 20],
        "block_out_channels": [320, 640, 1280, 1280],
        "center_input_sample": false,
        "cross_attention_dim": 1024,
        "down_block_types":
            ["CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"],
        "downsample_padding": 1,
        "dual_cross_attention": false,
        "flip_sin_to_cos": true,
        "freq_shift": 0,
        "in_channels": 4,
        "layers_per_block": 2,
        "mid_block_scale_factor": 1,
        "norm_eps": 1e-05,
        "norm_num_groups": 32,
        "num_class_embeds": null,
        "only_cross_attention": false,
        "out_channels": 4,
        "sample_size": 64,
        "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"],
        "use_linear_projection": true
    })
}

/// stable-diffusion-v1-5/stable-diffusion-v1-5, unet/config.json: the differences to that of
/// stable-diffusion-2-base.
fn sd15_unet() -> Value {
    let mut config = sd2_unet();
    let keys = config.as_object_mut().unwrap();
    for key in ["dual_cross_attention", "num_class_embeds", "only_cross_attention", "use_linear_projection"] {
        keys.remove(key);
    }
    config["_diffusers_version"] = json!("0.6.0");
    config["attention_head_dim"] = json!(8);
    config["cross_attention_dim"] = json!(768);
    // diffusers' converter writes null.
    config["upcast_attention"] = Value::Null;
    config
}

/// stabilityai/stable-diffusion-xl-base-1.0, unet/config.json: the differences to that of stable-diffusion-2-base.
fn sdxl_unet() -> Value {
    let mut config = sd2_unet();
    for (key, value) in [
        ("addition_embed_type", json!("text_time")),
        ("addition_embed_type_num_heads", json!(64)),
        ("addition_time_embed_dim", json!(256)),
        ("attention_head_dim", json!([5, 10, 20])),
        ("block_out_channels", json!([320, 640, 1280])),
        ("cross_attention_dim", json!(2048)),
        ("down_block_types", json!(["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"])),
        ("projection_class_embeddings_input_dim", json!(2816)),
        ("resnet_skip_time_act", json!(false)),
        ("sample_size", json!(128)),
        ("transformer_layers_per_block", json!([1, 2, 10])),
        ("up_block_types", json!(["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"])),
        ("upcast_attention", Value::Null),
    ] {
        config[key] = value;
    }
    config
}

/// stabilityai/stable-diffusion-3-medium-diffusers, transformer/config.json.
fn sd3_transformer() -> Value {
    json!({
        "_class_name": "SD3Transformer2DModel",
        "_diffusers_version": "0.29.0.dev0",
        "attention_head_dim": 64,
        "caption_projection_dim": 1536,
        "in_channels": 16,
        "joint_attention_dim": 4096,
        "num_attention_heads": 24,
        "num_layers": 24,
        "out_channels": 16,
        "patch_size": 2,
        "pooled_projection_dim": 2048,
        "pos_embed_max_size": 192,
        "sample_size": 128
    })
}

/// The VAE of both, except for the size that it was trained on.
fn vae() -> Value {
    json!({
        "_class_name": "AutoencoderKL",
        "_diffusers_version": "0.10.0.dev0",
        "act_fn": "silu",
        "block_out_channels": [128, 256, 512, 512],
        "down_block_types":
            ["DownEncoderBlock2D", "DownEncoderBlock2D", "DownEncoderBlock2D", "DownEncoderBlock2D"],
        "in_channels": 3,
        "latent_channels": 4,
        "layers_per_block": 2,
        "norm_num_groups": 32,
        "out_channels": 3,
        "sample_size": 768,
        "up_block_types": ["UpDecoderBlock2D", "UpDecoderBlock2D", "UpDecoderBlock2D", "UpDecoderBlock2D"]
    })
}

/// stabilityai/stable-diffusion-2-base, text_encoder/config.json.
fn sd2_text_encoder() -> Value {
    json!({
        "_name_or_path": "hf-models/stable-diffusion-v2-768x768/text_encoder",
        "architectures": ["CLIPTextModel"],
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "dropout": 0.0,
        "eos_token_id": 2,
        "hidden_act": "gelu",
        "hidden_size": 1024,
        "initializer_factor": 1.0,
        "initializer_range": 0.02,
        "intermediate_size": 4096,
        "layer_norm_eps": 1e-05,
        "max_position_embeddings": 77,
        "model_type": "clip_text_model",
        "num_attention_heads": 16,
        "num_hidden_layers": 23,
        "pad_token_id": 1,
        "projection_dim": 512,
        "torch_dtype": "float32",
        "transformers_version": "4.25.0.dev0",
        "vocab_size": 49408
    })
}

fn sd15_text_encoder() -> Value {
    let mut config = sd2_text_encoder();
    for (key, value) in [
        ("hidden_act", json!("quick_gelu")),
        ("hidden_size", json!(768)),
        ("intermediate_size", json!(3072)),
        ("num_attention_heads", json!(12)),
        ("num_hidden_layers", json!(12)),
        ("projection_dim", json!(768)),
    ] {
        config[key] = value;
    }
    config
}

/// stabilityai/stable-diffusion-xl-base-1.0, text_encoder_2/config.json.
fn sdxl_text_encoder_2() -> Value {
    let mut config = sd2_text_encoder();
    for (key, value) in [
        ("architectures", json!(["CLIPTextModelWithProjection"])),
        ("hidden_size", json!(1280)),
        ("intermediate_size", json!(5120)),
        ("num_attention_heads", json!(20)),
        ("num_hidden_layers", json!(32)),
        ("projection_dim", json!(1280)),
    ] {
        config[key] = value;
    }
    config
}

/// stabilityai/stable-diffusion-3-medium-diffusers, text_encoder_3/config.json.
fn t5_xxl() -> Value {
    json!({
        "_name_or_path": "google/t5-v1_1-xxl",
        "architectures": ["T5EncoderModel"],
        "classifier_dropout": 0.0,
        "d_ff": 10240,
        "d_kv": 64,
        "d_model": 4096,
        "decoder_start_token_id": 0,
        "dense_act_fn": "gelu_new",
        "dropout_rate": 0.1,
        "eos_token_id": 1,
        "feed_forward_proj": "gated-gelu",
        "initializer_factor": 1.0,
        "is_encoder_decoder": true,
        "is_gated_act": true,
        "layer_norm_epsilon": 1e-06,
        "model_type": "t5",
        "num_decoder_layers": 24,
        "num_heads": 64,
        "num_layers": 24,
        "output_past": true,
        "pad_token_id": 0,
        "relative_attention_max_distance": 128,
        "relative_attention_num_buckets": 32,
        "tie_word_embeddings": false,
        "torch_dtype": "float16",
        "transformers_version": "4.41.0.dev0",
        "use_cache": true,
        "vocab_size": 32128
    })
}

#[test]
fn parameter_counts_are_those_published() {
    let dir = tempfile::tempdir().unwrap();
    for (config, count) in
        [(sd2_unet(), 865_910_724), (sd15_unet(), 859_520_964), (sdxl_unet(), 2_567_463_684)]
    {
        let config = UNetConfig::read(&write(dir.path(), &config)).unwrap();
        let unet = UNet2DConditionModel::new(config, Device::Cpu, ParamInit::Empty).unwrap();
        assert_eq!(unet.params().parameter_count(), count);
    }
    let config = SD3TransformerConfig::read(&write(dir.path(), &sd3_transformer())).unwrap();
    let transformer = SD3Transformer2DModel::new(config, Device::Cpu, ParamInit::ShapeOnly).unwrap();
    assert_eq!(transformer.params().parameter_count(), 2_028_328_000);
    let config = VaeConfig::read(&write(dir.path(), &vae())).unwrap();
    assert_eq!((config.downscale_factor(), config.scaling_factor), (8, 0.18215));
    assert_eq!(
        AutoencoderKl::new(config, Device::Cpu, ParamInit::Empty).params().parameter_count(),
        83_653_863
    );
    for (config, count) in [
        (sd2_text_encoder(), 340_387_840),
        (sd15_text_encoder(), 123_060_480),
        (sdxl_text_encoder_2(), 694_659_840),
    ] {
        let config = ClipTextConfig::read(&write(dir.path(), &config)).unwrap();
        assert_eq!(
            ClipTextModel::new(config, Device::Cpu, ParamInit::Empty).params().parameter_count(),
            count
        );
    }
    let path = write(dir.path(), &t5_xxl());
    let t5 = T5EncoderModel::new(T5Config::read(&path).unwrap(), Device::Cpu, ParamInit::ShapeOnly);
    assert_eq!(t5.params().parameter_count(), 4_762_310_656);
    let peak = tidemill_testing::peak_kib(std::process::id()).unwrap();
    println!("peak memory: {} MB", peak / 1024);
    // A test binary with libtorch takes a few hundred MB; the networks themselves would be 9 GB.
    assert!(peak < 1024 * 1024, "{peak} kB");
}

#[test]
fn published_schedulers_open() {
    let dir = tempfile::tempdir().unwrap();
    let base = json!({
        "_class_name": "PNDMScheduler",
        "_diffusers_version": "0.10.0.dev0",
        "beta_end": 0.012,
        "beta_schedule": "scaled_linear",
        "beta_start": 0.00085,
        "clip_sample": false,
        "num_train_timesteps": 1000,
        "prediction_type": "epsilon",
        "set_alpha_to_one": false,
        "skip_prk_steps": true,
        "steps_offset": 1,
        "trained_betas": null
    });
    let config = SchedulerConfig::read(&write(dir.path(), &base)).unwrap();
    let expected = SchedulerConfig {
        beta_start: 0.00085,
        beta_end: 0.012,
        beta_schedule: BetaSchedule::ScaledLinear,
        set_alpha_to_one: false,
        steps_offset: 1,
        ..SchedulerConfig::default()
    };
    assert_eq!(config, expected);

    // A key that a file omits has the default of the file's own class.
    for (class, to_one, spacing) in [
        ("PNDMScheduler", false, TimestepSpacing::Leading),
        ("DDIMScheduler", true, TimestepSpacing::Leading),
        ("DPMSolverMultistepScheduler", true, TimestepSpacing::Linspace),
    ] {
        let sparse = json!({"_class_name": class, "prediction_type": "v_prediction"});
        let config = SchedulerConfig::read(&write(dir.path(), &sparse)).unwrap();
        assert_eq!(config.prediction_type, PredictionType::VPrediction);
        assert_eq!((config.set_alpha_to_one, config.timestep_spacing), (to_one, spacing), "{class}");
        assert!(!config.clip_sample);
    }
}
