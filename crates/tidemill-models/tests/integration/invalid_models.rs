//! Errors about invalid model folders name the file and the key or tensor. Tables of cases: a
//! change to a valid folder, and the text that the message must contain.

use serde_json::{Value, json};
use std::path::Path;
use tch::{Device, Kind, Tensor};
use tidemill_models::{
    AutoencoderKl, ClipTextConfig, ClipTextModel, Error, ParamInit, SD3Transformer2DModel,
    SD3TransformerConfig, SchedulerConfig, SchedulerForm, UNet2DConditionModel, UNetConfig, VaeConfig,
    load_weights, save_weights,
};

const WEIGHTS: &str = "diffusion_pytorch_model.safetensors";

/// Two levels, one of them with attention.
pub fn tiny_unet() -> UNet2DConditionModel {
    let config = json!({
        "block_out_channels": [6, 12],
        "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
        "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
        "norm_num_groups": 3,
        "cross_attention_dim": 5,
        "attention_head_dim": [2, 4],
        "layers_per_block": 1,
    });
    let config: UNetConfig = serde_json::from_value(config).unwrap();
    UNet2DConditionModel::new(config, Device::Cpu, ParamInit::Random).unwrap()
}

fn tiny_vae() -> AutoencoderKl {
    let config = VaeConfig { block_out_channels: vec![6], norm_num_groups: 3, ..VaeConfig::default() };
    AutoencoderKl::new(config, Device::Cpu, ParamInit::Random)
}

fn tiny_text_encoder() -> ClipTextModel {
    let config = ClipTextConfig {
        vocab_size: 10,
        hidden_size: 6,
        intermediate_size: 7,
        num_hidden_layers: 1,
        num_attention_heads: 2,
        ..ClipTextConfig::default()
    };
    ClipTextModel::new(config, Device::Cpu, ParamInit::Random)
}

fn load_unet(dir: &Path) -> Result<(), Error> {
    UNet2DConditionModel::load(dir, Device::Cpu).map(|_| ())
}

fn load_vae(dir: &Path) -> Result<(), Error> {
    AutoencoderKl::load(dir, Device::Cpu, Kind::Float).map(|_| ())
}

fn load_text_encoder(dir: &Path) -> Result<(), Error> {
    ClipTextModel::load(dir, Device::Cpu, Kind::Float).map(|_| ())
}

fn read_scheduler(dir: &Path) -> Result<(), Error> {
    SchedulerConfig::read(&dir.join("config.json")).map(|_| ())
}

/// For each case, sets a key in the folder's valid configuration, and expects an error with the key
/// and a text.
fn assert_refused(valid: &Path, load: fn(&Path) -> Result<(), Error>, cases: &[(&str, Value, &str)]) {
    let path = valid.join("config.json");
    let original = std::fs::read_to_string(&path).unwrap();
    load(valid).expect("the unchanged folder loads");
    for (key, value, expected) in cases {
        let mut config: Value = serde_json::from_str(&original).unwrap();
        config[*key] = value.clone();
        std::fs::write(&path, config.to_string()).unwrap();
        let message = load(valid).expect_err(&format!("{key} = {value}")).to_string();
        for part in [path.to_str().unwrap(), &format!("`{key}`"), expected] {
            assert!(message.contains(part), "{key} = {value}: {message:?} does not contain {part:?}");
        }
        assert_eq!(message.lines().count(), 1, "{message}");
    }
    std::fs::write(&path, original).unwrap();
}

#[test]
fn invalid_unet_configs_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    tiny_unet().save(dir.path()).unwrap();
    assert_refused(
        dir.path(),
        load_unet,
        &[
            ("_class_name", json!("UNet2DModel"), "Tidemill reads UNet2DConditionModel"),
            ("attention_head_dims", json!(8), "is not known to Tidemill"),
            ("class_embed_type", json!("timestep"), "must be null"),
            ("dual_cross_attention", json!(true), "must be false"),
            ("num_attention_heads", json!(8), "must be null"),
            ("time_embedding_type", json!("fourier"), "must be \"positional\""),
            ("mid_block_type", json!(null), "must be \"UNetMidBlock2DCrossAttn\""),
            ("in_channels", json!("four"), "invalid type: string"),
            ("in_channels", json!(0), "at least 1"),
            ("norm_num_groups", json!(0), "at least 1"),
            ("norm_num_groups", json!(null), "invalid type: null"),
            ("cross_attention_dim", json!([5, 5]), "invalid type: sequence"),
            ("transformer_layers_per_block", json!([[1], [1]]), "PerLevel"),
            ("transformer_layers_per_block", json!([1, 1, 1]), "give one value, or 2"),
            ("attention_head_dim", json!([2]), "give one value, or 2"),
            ("block_out_channels", json!([7, 12]), "norm_num_groups = 3 must divide it"),
            ("block_out_channels", json!([6, 9]), "attention_head_dim = 4 heads must divide it"),
            ("block_out_channels", json!([0, 12]), "norm_num_groups = 3 must divide it"),
            ("down_block_types", json!(["DownBlock2D"]), "give 2 of \"DownBlock2D\""),
            ("up_block_types", json!(["AttnUpBlock2D", "UpBlock2D"]), "CrossAttnUpBlock2D"),
            ("addition_embed_type", json!("text_image"), "unknown variant `text_image`"),
        ],
    );
}

#[test]
fn invalid_vae_configs_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    tiny_vae().save(dir.path()).unwrap();
    assert_refused(
        dir.path(),
        load_vae,
        &[
            ("_class_name", json!("AutoencoderTiny"), "AutoencoderKL"),
            ("act_fn", json!("gelu"), "must be \"silu\""),
            ("shift_factor", json!("0.1"), "invalid type: string"),
            ("latents_mean", json!([0.1, 0.2, 0.3, 0.4]), "must be null"),
            ("down_block_types", json!(["AttnDownEncoderBlock2D"]), "must be 1 times \"DownEncoderBlock2D\""),
            ("block_out_channels", json!([]), "give the channels of each level"),
            ("block_out_channels", json!([7]), "3 groups must divide it"),
            ("scaling_factor", json!("0.18"), "invalid type: string"),
            ("layers_per_block", json!(-1), "at least 1"),
        ],
    );
}

#[test]
fn invalid_transformer_configs_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let config = SD3TransformerConfig {
        num_layers: 1,
        attention_head_dim: 4,
        num_attention_heads: 2,
        caption_projection_dim: 8,
        pos_embed_max_size: 4,
        ..SD3TransformerConfig::default()
    };
    SD3Transformer2DModel::new(config, Device::Cpu, ParamInit::Random).unwrap().save(dir.path()).unwrap();
    assert_refused(
        dir.path(),
        |dir| SD3Transformer2DModel::load(dir, Device::Cpu).map(|_| ()),
        &[
            ("_class_name", json!("FluxTransformer2DModel"), "Tidemill reads SD3Transformer2DModel"),
            ("qk_norm", json!("layer_norm"), "unknown variant `layer_norm`"),
            ("num_layers", json!(0), "at least 1"),
            ("caption_projection_dim", json!(16), "num_attention_heads x attention_head_dim = 8"),
            ("attention_head_dim", json!(3), "four must divide the width"),
            ("dual_attention_layers", json!([1]), "there is no such layer"),
            ("sample_size", json!(1), "at least patch_size"),
            ("guidance_embeds", json!(true), "is not known to Tidemill"),
        ],
    );
}

#[test]
fn invalid_text_encoder_configs_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    tiny_text_encoder().save(dir.path()).unwrap();
    assert_refused(
        dir.path(),
        load_text_encoder,
        &[
            ("model_type", json!("clip"), "must be \"clip_text_model\""),
            ("hidden_act", json!("relu"), "unknown variant `relu`"),
            ("num_attention_heads", json!(4), "must divide hidden_size = 6"),
            ("num_attention_heads", json!(0), "at least 1"),
            ("attention_dropout", json!(0.1), "must be 0.0"),
            ("rope_theta", json!(1e4), "is not known to Tidemill"),
        ],
    );
}

#[test]
fn invalid_scheduler_configs_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    SchedulerConfig::default()
        .write(
            &dir.path().join("config.json"),
            SchedulerForm::StableDiffusionPipeline { image_seq_len: 1024 },
        )
        .unwrap();
    assert_refused(
        dir.path(),
        read_scheduler,
        &[
            ("_class_name", json!("EulerDiscreteScheduler"), "Tidemill reads DDIMScheduler"),
            ("clip_sample", json!(true), "latents are not bounded"),
            ("prediction_type", json!("sample"), "unknown variant `sample`"),
            ("beta_schedule", json!("squaredcos_cap_v2"), "unknown variant"),
            ("trained_betas", json!([0.1]), "must be null"),
            ("thresholding", json!(true), "must be false"),
            ("num_train_timesteps", json!(0), "at least 1"),
            ("solver_orders", json!(2), "is not known to Tidemill"),
            ("prediction_type", json!("flow_prediction"), "it must be true with `prediction_type`"),
            ("use_flow_sigmas", json!(true), "it must be true with `prediction_type`"),
            ("use_dynamic_shifting", json!(true), "must be false"),
        ],
    );
}

/// The name of a case, a change to a valid folder, and texts that the error must contain.
type Damage = (&'static str, fn(&Path), &'static [&'static str]);

#[test]
fn damaged_weights_and_files_are_refused() {
    fn rewrite(dir: &Path, change: impl FnOnce(&mut Vec<(String, Tensor)>)) {
        let mut tensors = Tensor::read_safetensors(dir.join(WEIGHTS)).unwrap();
        change(&mut tensors);
        save_weights(&tensors, &dir.join(WEIGHTS)).unwrap();
    }
    fn replace(dir: &Path, file: &str, bytes: &[u8]) {
        std::fs::write(dir.join(file), bytes).unwrap();
    }
    fn ones(shape: &[i64], kind: Kind) -> Tensor {
        Tensor::ones(shape, (kind, Device::Cpu))
    }
    let cases: &[Damage] = &[
        (
            "a tensor is missing",
            |dir| rewrite(dir, |tensors| tensors.retain(|(name, _)| name != "conv_in.bias")),
            &["do not fit config.json", "conv_in.bias is missing"],
        ),
        (
            "a tensor is superfluous",
            |dir| {
                rewrite(dir, |tensors| tensors.push(("add_embedding.weight".into(), ones(&[2], Kind::Float))))
            },
            &["add_embedding.weight is not a parameter of this model"],
        ),
        (
            "a tensor has another shape",
            |dir| {
                rewrite(dir, |tensors| {
                    tensors.retain(|(name, _)| name != "conv_in.weight");
                    tensors.push(("conv_in.weight".into(), ones(&[6, 9, 3, 3], Kind::Float)));
                });
            },
            &["conv_in.weight is [6, 9, 3, 3], expected [6, 4, 3, 3]"],
        ),
        (
            "many are wrong",
            |dir| rewrite(dir, |tensors| tensors.truncate(1)),
            &["is missing", "and ", " more"],
        ),
        (
            "the file is cut off",
            |dir| {
                let bytes = std::fs::read(dir.join(WEIGHTS)).unwrap();
                replace(dir, WEIGHTS, &bytes[..bytes.len() - 5]);
            },
            &[WEIGHTS, "bytes where its header says", "download or export it again"],
        ),
        (
            "the header is cut off",
            |dir| {
                let bytes = std::fs::read(dir.join(WEIGHTS)).unwrap();
                replace(dir, WEIGHTS, &bytes[..100]);
            },
            &[WEIGHTS, "not a valid safetensors file"],
        ),
        ("the file is empty", |dir| replace(dir, WEIGHTS, b""), &[WEIGHTS, "not a valid safetensors file"]),
        (
            "the header is no JSON",
            |dir| replace(dir, WEIGHTS, b"\x05\0\0\0\0\0\0\0hello"),
            &[WEIGHTS, "not a valid safetensors file"],
        ),
        (
            "git-lfs left a pointer",
            |dir| replace(dir, WEIGHTS, b"version https://git-lfs.github.com/spec/v1\n"),
            &[WEIGHTS, "git lfs pull"],
        ),
        (
            "there are no weights",
            |dir| std::fs::remove_file(dir.join(WEIGHTS)).unwrap(),
            &["*.safetensors", "not found", "diffusion_pytorch_model.safetensors"],
        ),
        (
            "a shard is missing",
            |dir| {
                std::fs::remove_file(dir.join(WEIGHTS)).unwrap();
                let index = br#"{"weight_map": {"conv_in.bias": "part-2-of-3.safetensors"}}"#;
                replace(dir, "diffusion_pytorch_model.safetensors.index.json", index);
            },
            &["part-2-of-3.safetensors", "No such file"],
        ),
        (
            "the index is no index",
            |dir| {
                std::fs::remove_file(dir.join(WEIGHTS)).unwrap();
                replace(dir, "diffusion_pytorch_model.safetensors.index.json", b"{}");
            },
            &["index.json", "missing field `weight_map`"],
        ),
        (
            "there is no configuration",
            |dir| std::fs::remove_file(dir.join("config.json")).unwrap(),
            &["config.json", "not found", "diffusers layout"],
        ),
        (
            "the configuration is no JSON",
            |dir| replace(dir, "config.json", b"{\n  \"in_channels\": 4,\n}"),
            &["config.json", "line 3"],
        ),
        (
            "the configuration is no object",
            |dir| replace(dir, "config.json", b"[1]"),
            &["config.json", "map"],
        ),
    ];
    for (what, damage, expected) in cases {
        let dir = tempfile::tempdir().unwrap();
        tiny_unet().save(dir.path()).unwrap();
        load_unet(dir.path()).expect("the unchanged folder loads");
        damage(dir.path());
        let message = load_unet(dir.path()).expect_err(what).to_string();
        for part in expected.iter().chain(&[dir.path().to_str().unwrap()]) {
            assert!(message.contains(part), "{what}: {message:?} does not contain {part:?}");
        }
    }
}

#[test]
fn weights_of_any_float_dtype_load() {
    let dir = tempfile::tempdir().unwrap();
    let unet = tiny_unet();
    for (kind, fits) in
        [(Kind::Half, true), (Kind::BFloat16, true), (Kind::Double, true), (Kind::Bool, false)]
    {
        let cast: Vec<_> =
            unet.params().named_parameters().into_iter().map(|(name, t)| (name, t.to_kind(kind))).collect();
        // Written by tch: this crate refuses dtypes that no network has.
        Tensor::write_safetensors(&cast, dir.path().join(WEIGHTS)).unwrap();
        let result = load_weights(tiny_unet().params(), dir.path());
        assert_eq!(result.is_ok(), fits, "{kind:?}: {result:?}");
    }
    let flags = vec![("flags".to_string(), Tensor::from_slice(&[true]))];
    let refused = save_weights(&flags, &dir.path().join("flags.safetensors")).unwrap_err().to_string();
    assert!(refused.contains("flags has the dtype Bool"), "{refused}");
}
