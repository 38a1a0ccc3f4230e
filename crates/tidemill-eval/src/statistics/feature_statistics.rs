//! Statistics of features, in memory and in a file.

use std::collections::HashMap;
use std::path::Path;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use tch::{Kind, Tensor};
use tidemill_torch::{guard, tensor_to_bytes};

use super::moments::Moments;
use crate::error::{Error, Result};

/// What is known of the features of a set of images.
#[derive(Debug)]
pub struct FeatureStatistics {
    /// Mean and covariance of all images.
    pub moments: Moments,
    /// The features of a uniform sample of the images [M, D], f32.
    pub sample: Tensor,
    /// The digest of the network that gave the features.
    pub network: String,
}

/// The key in a file's metadata under which the number of images is.
const COUNT: &str = "count";
/// The key under which the digest of the network is.
const NETWORK: &str = "network";
/// The key under which the digest of the images is.
const IMAGES: &str = "images";

impl FeatureStatistics {
    /// The statistics as a safetensors file: `mean` and `covariance` in f64, `sample` in f32.
    /// `images` identifies the images.
    ///
    /// # Errors
    /// If libtorch fails.
    pub fn to_bytes(&self, images: &str) -> Result<Vec<u8>> {
        let tensors = [
            ("mean", &self.moments.mean, Dtype::F64),
            ("covariance", &self.moments.covariance, Dtype::F64),
            ("sample", &self.sample, Dtype::F32),
        ];
        let mut data = Vec::new();
        for (name, tensor, dtype) in tensors {
            let shape: Vec<usize> = tensor.size().iter().map(|n| *n as usize).collect();
            data.push((name, dtype, shape, guard(|| tensor_to_bytes(tensor))?));
        }
        let invalid = |e: safetensors::SafeTensorError| Error::File {
            path: "statistics".into(),
            message: e.to_string(),
        };
        let mut views = Vec::new();
        for (name, dtype, shape, bytes) in &data {
            views.push((*name, TensorView::new(*dtype, shape.clone(), bytes).map_err(invalid)?));
        }
        let metadata = HashMap::from([
            (COUNT.to_string(), self.moments.count.to_string()),
            (NETWORK.to_string(), self.network.clone()),
            (IMAGES.to_string(), images.to_string()),
        ]);
        safetensors::serialize(views, Some(metadata)).map_err(invalid)
    }

    /// Reads what [`Self::to_bytes`] made, for use with `network`. `path` is for messages.
    ///
    /// # Errors
    /// If the bytes are damaged, are not statistics, or are of another network.
    pub fn from_bytes(bytes: &[u8], network: &str, path: &Path) -> Result<Self> {
        let invalid = |message: String| Error::File {
            path: path.into(),
            message: format!("not statistics of features ({message}); remove it to compute them again"),
        };
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(|e| invalid(e.to_string()))?;
        let metadata = header.metadata().clone().unwrap_or_default();
        let count = metadata.get(COUNT).and_then(|count| count.parse().ok());
        let count = count.ok_or_else(|| invalid(format!("no `{COUNT}` in its metadata")))?;
        if metadata.get(NETWORK).is_none_or(|found| found != network) {
            let message = "its features are of another network, or of images that were resized in another way; \
                           compute it again with this one";
            return Err(Error::File { path: path.into(), message: message.into() });
        }
        let file = SafeTensors::deserialize(bytes).map_err(|e| invalid(e.to_string()))?;
        let read = |name: &str, dtype: Dtype, kind: Kind| -> Result<Tensor> {
            let view = file.tensor(name).map_err(|e| invalid(e.to_string()))?;
            if view.dtype() != dtype {
                return Err(invalid(format!("`{name}` is {:?}", view.dtype())));
            }
            let shape: Vec<i64> = view.shape().iter().map(|n| *n as i64).collect();
            Ok(guard(|| Tensor::from_data_size(view.data(), &shape, kind))?)
        };
        let mean = read("mean", Dtype::F64, Kind::Double)?;
        let covariance = read("covariance", Dtype::F64, Kind::Double)?;
        let sample = read("sample", Dtype::F32, Kind::Float)?;
        let width = mean.size().first().copied().unwrap_or(0);
        if mean.dim() != 1
            || covariance.size() != [width, width]
            || sample.dim() != 2
            || sample.size()[1] != width
        {
            return Err(invalid("its tensors do not fit together".into()));
        }
        Ok(Self { moments: Moments { count, mean, covariance }, sample, network: network.to_owned() })
    }

    /// The number of features of an image.
    pub fn width(&self) -> usize {
        self.moments.mean.size()[0] as usize
    }
}
