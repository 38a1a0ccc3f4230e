//! The features of CLIP and DINOv2, from the same weights and inputs as in Python.

use super::cases::cases;
use super::compare::Maximum;
use tch::{Device, Kind};
use tidemill_models::{ClipModel, Dinov2Model};

const LIMIT: f64 = 2e-5;

#[test]
fn clip_features_agree_with_transformers() {
    let (mut images, mut texts) = (Maximum::new("CLIP images", LIMIT), Maximum::new("CLIP texts", LIMIT));
    for case in cases("clip") {
        let model = ClipModel::load(&case.dir, Device::Cpu, Kind::Float).unwrap();
        images.check(&model.encode_images(case.tensor("images")), case.tensor("image"), || case.label());
        texts.check(&model.encode_texts(case.tensor("ids")), case.tensor("text"), || case.label());
        let scale = case.tensor("scale").double_value(&[]);
        assert!((model.logit_scale() / scale - 1.0).abs() < 1e-6, "{}", case.label());
    }
    images.print();
    texts.print();
}

#[test]
fn dinov2_features_agree_with_transformers() {
    let mut features = Maximum::new("DINOv2 features", LIMIT);
    for case in cases("dinov2") {
        let model = Dinov2Model::load(&case.dir, Device::Cpu, Kind::Float).unwrap();
        for size in ["own", "other"] {
            let found = model.encode_images(case.tensor(&format!("{size}.images")));
            features.check(&found, case.tensor(&format!("{size}.features")), || case.label());
        }
    }
    features.print();
}
