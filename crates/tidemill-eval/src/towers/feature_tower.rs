//! A network that turns images into features, with its way to prepare them.

use std::path::Path;

use serde_json::Value;
use tch::{Device, Kind, Tensor};
use tidemill_models::{ClipModel, Dinov2Model, FidInceptionV3, INCEPTION_FEATURES, compute_digest};

use crate::error::{Error, Result};
use crate::images::{ImageInput, ImageProcessor, InceptionInput, InceptionResize};

/// A network for features of images.
pub struct FeatureTower {
    network: Network,
    input: ImageInput,
    device: Device,
    digest: String,
}

enum Network {
    Clip(ClipModel),
    Dinov2(Dinov2Model),
    Inception(FidInceptionV3),
}

impl FeatureTower {
    /// Opens a folder with `config.json`, `model.safetensors` and, except for InceptionV3,
    /// `preprocessor_config.json`. `model_type` in `config.json` tells which network it is.
    /// `resize` is InceptionV3's. The weights are f32.
    ///
    /// # Errors
    /// If a file is missing or not supported, or the processor's images do not fit the network.
    pub fn open(dir: &Path, resize: InceptionResize, device: Device) -> Result<Self> {
        let (network, input) = match model_type(dir)?.as_str() {
            "fid_inception_v3" => {
                let network = Network::Inception(FidInceptionV3::load(dir, device)?);
                (network, ImageInput::Inception(InceptionInput(resize)))
            }
            "clip" => {
                let (model, processor) = open_clip(dir, device, Kind::Float)?;
                (Network::Clip(model), ImageInput::Transformers(processor))
            }
            "dinov2" => {
                let model = Dinov2Model::load(dir, device, Kind::Float)?;
                let processor = ImageProcessor::read(dir)?;
                let patch = model.config().patch_size;
                if i64::from(processor.side()) % patch != 0 {
                    let message = format!(
                        "its images are {} pixels wide, and the network's patches {patch}",
                        processor.side()
                    );
                    return Err(Error::File { path: dir.join("preprocessor_config.json"), message });
                }
                (Network::Dinov2(model), ImageInput::Transformers(processor))
            }
            other => {
                let message = format!(
                    "`model_type` = \"{other}\" gives no features of images; \"clip\", \"dinov2\" and \
                     \"fid_inception_v3\" do"
                );
                return Err(Error::File { path: dir.join("config.json"), message });
            }
        };
        let digest = format!("{}-{input:?}", compute_digest(dir)?);
        let digest = blake3::hash(digest.as_bytes()).to_hex().to_string();
        Ok(Self { network, input, device, digest })
    }

    /// Identifies the network's weights and the way it prepares images: features of different
    /// digests cannot be compared.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// The number of features of an image.
    pub fn width(&self) -> usize {
        let width = match &self.network {
            Network::Clip(model) => model.config().projection_dim,
            Network::Dinov2(model) => model.config().hidden_size,
            Network::Inception(_) => INCEPTION_FEATURES,
        };
        usize::try_from(width).unwrap_or(0)
    }

    /// How images are prepared for [`Self::encode`].
    pub fn input(&self) -> &ImageInput {
        &self.input
    }

    /// Prepared images, one behind the other, to features [N, width], f32, on the CPU. CLIP's have
    /// unit length.
    ///
    /// # Errors
    /// If libtorch fails, or a feature is not finite.
    pub fn encode(&self, planes: &[f32]) -> Result<Tensor> {
        let side = i64::from(self.input.side());
        let features = tidemill_torch::guard(|| {
            tch::no_grad(|| {
                let count = planes.len() as i64 / (3 * side * side);
                if count == 0 {
                    return Tensor::zeros([0, self.width() as i64], (Kind::Float, Device::Cpu));
                }
                let images =
                    Tensor::from_slice(planes).reshape([count, 3, side, side]).to_device(self.device);
                let features = match &self.network {
                    Network::Clip(model) => normalise(&model.encode_images(&images)),
                    Network::Dinov2(model) => model.encode_images(&images),
                    Network::Inception(model) => model.encode_images(&images),
                };
                features.to_device(Device::Cpu)
            })
        })?;
        match features.isfinite().all().int64_value(&[]) {
            0 => Err(Error::NotFinite),
            _ => Ok(features),
        }
    }
}

/// Opens a CLIP model and its image processor.
pub(crate) fn open_clip(dir: &Path, device: Device, kind: Kind) -> Result<(ClipModel, ImageProcessor)> {
    let model = ClipModel::load(dir, device, kind)?;
    let (processor, expected) = (ImageProcessor::read(dir)?, model.config().vision.image_size);
    if i64::from(processor.side()) != expected {
        let message =
            format!("its images are {} pixels wide, and the network takes {expected}", processor.side());
        return Err(Error::File { path: dir.join("preprocessor_config.json"), message });
    }
    Ok((model, processor))
}

/// Vectors [N, D] at unit length.
pub(crate) fn normalise(vectors: &Tensor) -> Tensor {
    vectors / vectors.norm_scalaropt_dim(2.0, [-1i64].as_slice(), true)
}

/// `model_type` in a folder's `config.json`.
fn model_type(dir: &Path) -> Result<String> {
    let path = dir.join("config.json");
    let text = std::fs::read_to_string(&path).map_err(|source| Error::Io { path: path.clone(), source })?;
    let config: Value = serde_json::from_str(&text)
        .map_err(|e| Error::File { path: path.clone(), message: e.to_string() })?;
    let named = config["model_type"].as_str().map(str::to_owned);
    named.ok_or(Error::File { path, message: "it has no `model_type`".into() })
}
