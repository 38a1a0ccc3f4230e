//! Scores of images and prompts, and the preparation of images for transformers' models.

use super::cases::{assert_close, folder, images, json, tensors};
use tch::{Device, Tensor};
use tidemill_data::decode::decode;
use tidemill_eval::images::{ImageProcessor, InceptionResize};
use tidemill_eval::towers::{ClipScorer, FeatureTower};

/// Resized with Pillow, so bytes are equal, and only the arithmetic in f32 differs.
#[test]
fn processed_images_agree_with_transformers() {
    let expected = tensors("processed.safetensors");
    for name in ["clip", "dinov2"] {
        let processor = ImageProcessor::read(&folder().join(name)).unwrap();
        let side = i64::from(processor.side());
        let planes: Vec<f32> =
            images().iter().flat_map(|bytes| processor.process(decode(bytes).unwrap()).unwrap()).collect();
        let found = Tensor::from_slice(&planes).reshape([-1, 3, side, side]);
        assert_close(name, &found, &expected[name], 1e-6);
    }
}

#[test]
fn cosines_agree_with_transformers() {
    let scorer = ClipScorer::open(&folder().join("clip"), Device::Cpu).unwrap();
    let prompts: Vec<String> = serde_json::from_value(json("prompts.json")).unwrap();
    let images = images();
    let planes: Vec<f32> =
        images.iter().flat_map(|bytes| scorer.input().process(decode(bytes).unwrap()).unwrap()).collect();
    let found = scorer.cosines(&planes, &prompts).unwrap();
    assert_close("cosines", &Tensor::from_slice(&found), &tensors("processed.safetensors")["cosines"], 1e-5);
}

#[test]
fn towers_that_do_not_fit_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        FeatureTower::open(dir.path(), InceptionResize::Tensorflow, Device::Cpu).err().unwrap().to_string()
    };
    assert!(open().contains("config.json"), "{}", open());
    std::fs::write(dir.path().join("config.json"), r#"{"model_type": "bert"}"#).unwrap();
    assert!(open().contains("\"bert\" gives no features"), "{}", open());
    for file in ["config.json", "model.safetensors", "preprocessor_config.json"] {
        std::fs::copy(folder().join("clip").join(file), dir.path().join(file)).unwrap();
    }
    assert!(FeatureTower::open(dir.path(), InceptionResize::Tensorflow, Device::Cpu).is_ok());
    let processor = dir.path().join("preprocessor_config.json");
    let text = std::fs::read_to_string(&processor).unwrap();
    let smaller = text.replace("\"shortest_edge\": 28", "\"shortest_edge\": 21");
    std::fs::write(
        &processor,
        smaller.replace("\"height\": 28", "\"height\": 21").replace("\"width\": 28", "\"width\": 21"),
    )
    .unwrap();
    assert!(open().contains("21 pixels wide, and the network takes 28"), "{}", open());
}
