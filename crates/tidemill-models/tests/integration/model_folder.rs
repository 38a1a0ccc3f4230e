//! Model folders: required parts, digests, and exports.

use std::collections::BTreeMap;
use std::path::Path;
use tch::Device;
use tidemill_models::{
    DenoiserConfig, ModelFolder, ParamInit, SchedulerConfig, UNet2DConditionModel, UNetConfig, Variant,
    compute_digest,
};

const PARTS: [&str; 6] = [
    "vae/config.json",
    "text_encoder/config.json",
    "tokenizer/vocab.json",
    "tokenizer/merges.txt",
    "unet/config.json",
    "scheduler/scheduler_config.json",
];

fn write_parts(dir: &Path) {
    for part in PARTS {
        std::fs::create_dir_all(dir.join(part).parent().unwrap()).unwrap();
        std::fs::write(dir.join(part), part).unwrap();
    }
}

#[test]
fn missing_part_is_named() {
    let dir = tempfile::tempdir().unwrap();
    for part in PARTS {
        write_parts(dir.path());
        assert!(!ModelFolder::open(dir.path()).unwrap().has_denoiser_weights().unwrap());
        std::fs::remove_file(dir.path().join(part)).unwrap();
        let message = ModelFolder::open(dir.path()).unwrap_err().to_string();
        assert!(message.contains(dir.path().join(part).to_str().unwrap()), "{message}");
        assert!(message.contains("diffusers layout"), "{message}");
    }
    let nowhere = dir.path().join("nowhere");
    let message = ModelFolder::open(&nowhere).unwrap_err().to_string();
    assert!(message.contains("nowhere: not found; set [models] path"), "{message}");
}

#[test]
fn unreadable_weights_are_an_error() {
    let dir = tempfile::tempdir().unwrap();
    write_parts(dir.path());
    let unet = dir.path().join("unet");
    for name in [
        "diffusion_pytorch_model.bin",
        "diffusion_pytorch_model.non_ema.safetensors",
        "diffusion_pytorch_model.safetensors.index.json",
    ] {
        std::fs::write(unet.join(name), "{").unwrap();
        let error = ModelFolder::open(dir.path()).unwrap().has_denoiser_weights().unwrap_err().to_string();
        assert!(error.contains("safetensors"), "{name}: {error}");
        std::fs::remove_file(unet.join(name)).unwrap();
    }
    // A broken link, as an interrupted download leaves it.
    std::os::unix::fs::symlink("../blobs/gone", unet.join("diffusion_pytorch_model.safetensors")).unwrap();
    assert!(ModelFolder::open(dir.path()).unwrap().has_denoiser_weights().is_err());
}

#[test]
fn export_is_f32_and_does_not_change_its_source() {
    let dir = tempfile::tempdir().unwrap();
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets");
    let folder = ModelFolder::open(&assets).unwrap();
    let digests = || [folder.vae(), folder.text_encoder()].map(|part| compute_digest(&part).unwrap());
    let before = digests();
    let export = |to: &Path| {
        folder.export(
            to,
            &DenoiserConfig::UNet(UNetConfig::default()),
            Vec::new(),
            &SchedulerConfig::default(),
            Variant::F32,
        )
    };
    let message = export(&assets.join("vae/..")).unwrap_err().to_string();
    assert!(message.contains("give another folder"), "{message}");

    std::fs::write(dir.path().join("model_index.json"), "of an earlier one").unwrap();
    export(dir.path()).unwrap();
    assert_eq!(digests(), before);
    // All files have the same permissions.
    let mode = |file: &str| {
        std::os::unix::fs::PermissionsExt::mode(
            &std::fs::metadata(dir.path().join(file)).unwrap().permissions(),
        )
    };
    assert_eq!(mode("unet/diffusion_pytorch_model.safetensors"), mode("unet/config.json"));
    // An interrupted export does not open.
    let broken = ModelFolder::open(&assets).unwrap();
    let nothing = Path::new("/dev/null");
    std::fs::remove_file(dir.path().join("unet/config.json")).unwrap();
    std::os::unix::fs::symlink(nothing.join("config.json"), dir.path().join("unet/config.json")).unwrap();
    assert!(
        broken
            .export(
                dir.path(),
                &DenoiserConfig::UNet(UNetConfig::default()),
                Vec::new(),
                &SchedulerConfig::default(),
                Variant::F32
            )
            .is_err()
    );
    assert!(!dir.path().join("model_index.json").exists());
    std::fs::remove_file(dir.path().join("unet/config.json")).unwrap();
    export(dir.path()).unwrap();
    let file = |part: &str| std::fs::read(dir.path().join(part)).unwrap();
    let config: serde_json::Value = serde_json::from_slice(&file("text_encoder/config.json")).unwrap();
    assert_eq!(config["dtype"], "float32");
    assert_eq!(file("tokenizer/vocab.json"), std::fs::read(assets.join("tokenizer/vocab.json")).unwrap());
    for (from, name) in [("vae", "diffusion_pytorch_model"), ("text_encoder", "model")] {
        let weights = |folder: &Path| {
            let file = folder.join(from).join(format!("{name}.safetensors"));
            BTreeMap::from_iter(tch::Tensor::read_safetensors(file).unwrap())
        };
        let (theirs, ours) = (weights(&assets), weights(dir.path()));
        assert!(theirs.keys().eq(ours.keys()));
        for (name, theirs) in theirs {
            assert_eq!(ours[&name].kind(), tch::Kind::Float);
            assert_eq!(ours[&name], theirs.to_kind(tch::Kind::Float), "{name}");
        }
    }
}

#[test]
fn export_of_an_old_vae_has_linear_attention_weights() {
    let (old, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets");
    for part in ["vae", "text_encoder", "tokenizer", "unet", "scheduler"] {
        std::fs::create_dir(old.path().join(part)).unwrap();
        for file in std::fs::read_dir(assets.join(part)).unwrap().map(|entry| entry.unwrap()) {
            std::fs::copy(file.path(), old.path().join(part).join(file.file_name())).unwrap();
        }
    }
    let file = "vae/diffusion_pytorch_model.safetensors";
    let weights = tch::Tensor::read_safetensors(assets.join(file)).unwrap();
    let is_linear = |name: &str, tensor: &tch::Tensor| name.contains(".attentions.") && tensor.dim() == 2;
    let convolutions: Vec<_> = weights
        .iter()
        .map(|(name, tensor)| match is_linear(name, tensor) {
            true => (name, tensor.unsqueeze(-1).unsqueeze(-1)),
            false => (name, tensor.shallow_clone()),
        })
        .collect();
    assert!(weights.iter().any(|(name, tensor)| is_linear(name, tensor)));
    tch::Tensor::write_safetensors(&convolutions, old.path().join(file)).unwrap();
    let folder = ModelFolder::open(old.path()).unwrap();
    folder
        .export(
            to.path(),
            &DenoiserConfig::UNet(UNetConfig::default()),
            Vec::new(),
            &SchedulerConfig::default(),
            Variant::F32,
        )
        .unwrap();
    let exported = BTreeMap::from_iter(tch::Tensor::read_safetensors(to.path().join(file)).unwrap());
    for (name, tensor) in weights {
        assert_eq!(exported[&name].size(), tensor.size(), "{name}");
    }
}

#[test]
fn single_file_becomes_the_same_folder_again() {
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets");
    let assets = ModelFolder::open(assets).unwrap();
    let config = UNetConfig::read(&assets.unet().join("config.json")).unwrap();
    let unet = UNet2DConditionModel::new(config.clone(), Device::Cpu, ParamInit::Random).unwrap();
    // CLIP's names, and OpenCLIP's.
    for activation in ["quick_gelu", "gelu"] {
        let dir = tempfile::tempdir().unwrap();
        let [exported, file, imported] =
            ["export", "model.safetensors", "import"].map(|name| dir.path().join(name));
        let (weights, scheduler) = (unet.params().named_parameters(), assets.scheduler().unwrap());
        assets
            .export(&exported, &DenoiserConfig::UNet(config.clone()), weights, &scheduler, Variant::F32)
            .unwrap();
        let text_config = exported.join("text_encoder/config.json");
        let text = std::fs::read(&text_config).unwrap();
        let mut text: serde_json::Value = serde_json::from_slice(&text).unwrap();
        text["hidden_act"] = activation.into();
        std::fs::write(&text_config, text.to_string()).unwrap();
        ModelFolder::open(&exported).unwrap().write_single_file(&file).unwrap();
        assets.import_single_file(&file, &imported).unwrap();
        for part in ["unet/diffusion_pytorch_model", "vae/diffusion_pytorch_model", "text_encoder/model"] {
            let read = |folder: &Path| {
                let weights =
                    tch::Tensor::read_safetensors(folder.join(part).with_extension("safetensors")).unwrap();
                let plain = |name: String| name.strip_prefix("text_model.").unwrap_or(&name).to_owned();
                let is_weight = |(name, _): &(String, tch::Tensor)| !name.ends_with("position_ids");
                BTreeMap::from_iter(
                    weights.into_iter().filter(is_weight).map(|(name, weight)| (plain(name), weight)),
                )
            };
            let (ours, theirs) = (read(&imported), read(&exported));
            assert!(ours.keys().eq(theirs.keys()), "{part}, {activation}");
            assert!(ours.iter().all(|(name, weight)| *weight == theirs[name]), "{part}, {activation}");
        }
    }
}

#[test]
fn digest_depends_on_names_and_contents_of_model_files() {
    let digest_of = |files: &[(&str, &str)]| {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            std::fs::write(dir.path().join(name), content).unwrap();
        }
        compute_digest(dir.path()).unwrap()
    };
    let (config, weights) = ("config.json", "model.safetensors");
    let one = digest_of(&[(config, "1"), (weights, "2")]);
    assert_eq!(one, digest_of(&[(weights, "2"), (config, "1")]));
    for other in [
        &[(config, "2"), (weights, "1")][..],
        &[(config, "1"), ("model.fp16.safetensors", "2")],
        &[(config, "1")],
        &[(config, "12"), (weights, "")],
        &[(config, "1"), (weights, "2"), ("vocab.json", "")],
    ] {
        assert_ne!(one, digest_of(other), "{other:?}");
    }
    let strange = [(".DS_Store", ""), ("model.fp16.safetensors", "2"), ("pytorch_model.bin", "3")];
    assert_eq!(one, digest_of(&[&[(config, "1"), (weights, "2")], &strange[..]].concat()));
}
