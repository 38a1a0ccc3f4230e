//! A model folder: which parts it must have, its digests, and an export's protection of its source.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::Path;
use tidemill_models::{ModelFolder, SchedulerConfig, UNetConfig, digest};

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
fn a_missing_part_is_named() {
    let dir = tempfile::tempdir().unwrap();
    for part in PARTS {
        write_parts(dir.path());
        assert!(!ModelFolder::open(dir.path()).unwrap().has_unet_weights().unwrap());
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
fn weights_that_cannot_be_read_are_not_taken_for_none() {
    let dir = tempfile::tempdir().unwrap();
    write_parts(dir.path());
    let unet = dir.path().join("unet");
    for name in [
        "diffusion_pytorch_model.bin",
        "diffusion_pytorch_model.non_ema.safetensors",
        "diffusion_pytorch_model.safetensors.index.json",
    ] {
        std::fs::write(unet.join(name), "{").unwrap();
        let error = ModelFolder::open(dir.path()).unwrap().has_unet_weights().unwrap_err().to_string();
        assert!(error.contains("safetensors"), "{name}: {error}");
        std::fs::remove_file(unet.join(name)).unwrap();
    }
    // As of a download that was broken off.
    std::os::unix::fs::symlink("../blobs/gone", unet.join("diffusion_pytorch_model.safetensors")).unwrap();
    assert!(ModelFolder::open(dir.path()).unwrap().has_unet_weights().is_err());
}

#[test]
fn an_export_is_in_f32_throughout_and_leaves_its_source_alone() {
    let dir = tempfile::tempdir().unwrap();
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets");
    let folder = ModelFolder::open(&assets).unwrap();
    let digests = || [folder.vae(), folder.text_encoder()].map(|part| digest(&part).unwrap());
    let before = digests();
    let export = |to: &Path| folder.export(to, &UNetConfig::default(), &[], &SchedulerConfig::default());
    let message = export(&assets.join("vae/..")).unwrap_err().to_string();
    assert!(message.contains("give another folder"), "{message}");

    export(dir.path()).unwrap();
    assert_eq!(digests(), before);
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
fn a_digest_sees_names_and_contents() {
    let digest_of = |files: &[(&str, &str)]| {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            std::fs::write(dir.path().join(name), content).unwrap();
        }
        digest(dir.path()).unwrap()
    };
    let one = digest_of(&[("a", "1"), ("b", "2")]);
    assert_eq!(one, digest_of(&[("b", "2"), ("a", "1")]));
    for other in
        [&[("a", "2"), ("b", "1")][..], &[("a", "1"), ("c", "2")], &[("a", "1")], &[("a", "12"), ("b", "")]]
    {
        assert_ne!(one, digest_of(other), "{other:?}");
    }
}
