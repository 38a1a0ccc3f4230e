//! FID's InceptionV3.

use super::cases::{assert_close, folder, images, tensors};
use tch::{Device, Tensor};
use tidemill_eval::images::InceptionResize;
use tidemill_eval::towers::{FeatureTower, Picture, extract_features};

/// Features of all images of the folder.
fn features(tower: &FeatureTower) -> Tensor {
    let mut found = Vec::new();
    let encoded = images().into_iter().map(|bytes| Ok::<_, tidemill_eval::Error>(Picture::Encoded(bytes)));
    extract_features(tower, encoded, 3, |batch| {
        assert!(batch.unreadable.is_empty());
        found.push(batch.features);
        Ok(())
    })
    .unwrap();
    Tensor::cat(&found, 0)
}

/// PNGs of different sizes, both larger and smaller than 299 pixels. clean-fid and pytorch-fid
/// resize outside of the network, whose features are torch-fidelity's.
#[test]
fn features_agree_with_torch_fidelity_clean_fid_and_pytorch_fid() {
    let expected = tensors("inception.safetensors");
    for (resize, name) in [
        (InceptionResize::Tensorflow, "torch_fidelity"),
        (InceptionResize::Clean, "clean_fid"),
        (InceptionResize::Pytorch, "pytorch_fid"),
    ] {
        let tower = FeatureTower::open(&folder().join("inception"), resize, Device::Cpu).unwrap();
        assert_close(name, &features(&tower), &expected[name], 1e-4);
    }
}
