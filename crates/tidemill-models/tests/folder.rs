//! A model folder: which parts it must have, its digests, and an export's protection of its source.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

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
        assert!(!ModelFolder::open(dir.path()).unwrap().has_unet_weights());
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
fn an_export_leaves_its_source_alone() {
    let dir = tempfile::tempdir().unwrap();
    write_parts(dir.path());
    let folder = ModelFolder::open(dir.path()).unwrap();
    let before = digest(&folder.vae()).unwrap();
    let by_another_name = dir.path().join("vae").join("..");
    let export = |to: &Path| folder.export(to, &UNetConfig::default(), &[], &SchedulerConfig::default());
    let message = export(&by_another_name).unwrap_err().to_string();
    assert!(message.contains("give another folder"), "{message}");
    assert_eq!(digest(&folder.vae()).unwrap(), before);
    export(&dir.path().join("exported")).unwrap();
    assert_eq!(digest(&dir.path().join("exported/vae")).unwrap(), before);
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
