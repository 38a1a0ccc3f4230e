//! The same weights in the forms in which old and new versions of the libraries store them.

use super::cases::folder;
use std::path::Path;
use tch::{Device, Kind, Tensor};
use tidemill_models::{AutoencoderKl, ClipTextModel, UNet2DConditionModel};

type NamedTensors = Vec<(String, Tensor)>;

fn assert_equal(form: &str, found: &NamedTensors, plain: &NamedTensors) {
    assert_eq!(found.len(), plain.len(), "{form}");
    for ((name, found), (plain_name, plain)) in found.iter().zip(plain) {
        assert_eq!(name, plain_name, "{form}");
        assert!(found == plain, "{form}: {name}");
    }
}

#[test]
fn unet_loads_from_shards_and_fp16_variants() {
    let load = |form: &str| {
        UNet2DConditionModel::load(&folder("variants/unet").join(form), Device::Cpu)
            .unwrap()
            .params()
            .named_parameters()
    };
    let plain = load("plain");
    for form in ["sharded", "left-over"] {
        assert_equal(form, &load(form), &plain);
    }
    let halves: NamedTensors =
        plain.iter().map(|(name, t)| (name.clone(), t.to_kind(Kind::Half).to_kind(Kind::Float))).collect();
    assert_equal("fp16", &load("fp16"), &halves);
    assert_equal("fp16-sharded", &load("fp16-sharded"), &halves);
}

#[test]
fn vae_loads_with_deprecated_attention_names() {
    let load = |form: &str| {
        let dir = folder("variants/vae").join(form);
        AutoencoderKl::load(&dir, Device::Cpu, Kind::Float).unwrap().params().named_parameters()
    };
    let plain = load("plain");
    assert_equal("deprecated", &load("deprecated"), &plain);
    assert_equal("convolutions", &load("convolutions"), &plain);
}

#[test]
fn text_encoder_loads_with_and_without_prefix() {
    let load = |form: &str| {
        let dir: &Path = &folder("variants/text").join(form);
        ClipTextModel::load(dir, Device::Cpu, Kind::Float).unwrap().params().named_parameters()
    };
    let plain = load("plain");
    for form in ["sharded", "bare", "prefixed", "position-ids"] {
        assert_equal(form, &load(form), &plain);
    }
}
