//! A head on the features of an image: linear layers that end in a score, such as LAION's aesthetic
//! predictors.

use std::path::Path;

use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};
use tidemill_torch::guard;

use crate::Error;
use crate::model_folder::safetensors_file::SafetensorsFile;

/// What follows each linear layer but the last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HeadActivation {
    /// Nothing, as in LAION's aesthetic predictors.
    #[default]
    None,
    /// max(x, 0).
    Relu,
    /// The exact GELU.
    Gelu,
}

/// What follows the last linear layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HeadOutput {
    /// Nothing: the score is the layer's output.
    #[default]
    None,
    /// A probability.
    Sigmoid,
    /// Probabilities of classes.
    Softmax,
}

/// Linear layers from features to scores, f32.
#[derive(Debug)]
pub struct ScoreHead {
    layers: Vec<(Tensor, Option<Tensor>)>,
    activation: HeadActivation,
    output: HeadOutput,
}

impl ScoreHead {
    /// Opens a safetensors file with the weights of linear layers: `weight` and `bias`, or
    /// `<name>.weight` and `<name>.bias` of several, in the order of the numbers in their names.
    ///
    /// # Errors
    /// If the file cannot be read, or its layers do not follow one another from `features` on.
    pub fn load(
        path: &Path,
        features: i64,
        activation: HeadActivation,
        output: HeadOutput,
        device: Device,
    ) -> Result<Self, Error> {
        let invalid = |message: String| Error::Safetensors { path: path.into(), message };
        let mut file = SafetensorsFile::open(path)?;
        let mut layers = Vec::new();
        let (mut width, mut above) = (features, "the features".to_owned());
        for name in layer_names(file.names()) {
            let shape = file.shape(&name);
            let [outputs, inputs] = shape[..] else {
                return Err(invalid(format!("{name} is {shape:?}; a linear layer has two dimensions")));
            };
            if inputs != width {
                return Err(invalid(format!("{name} takes {inputs} numbers, and {above} have {width}")));
            }
            let bias = format!("{}bias", name.strip_suffix("weight").unwrap_or_default());
            let has_bias = file.has(&bias);
            if has_bias && file.shape(&bias) != [outputs] {
                return Err(invalid(format!("{bias} is {:?}, expected [{outputs}]", file.shape(&bias))));
            }
            let mut read = |name: &str| -> Result<Tensor, Error> {
                let tensor = file.read(name)?;
                Ok(guard(|| tensor.to_kind(Kind::Float).to(device))?)
            };
            layers.push((read(&name)?, has_bias.then(|| read(&bias)).transpose()?));
            (width, above) = (outputs, format!("the outputs of {name}"));
        }
        if layers.is_empty() {
            return Err(invalid("it has no `weight` of a linear layer".into()));
        }
        Ok(Self { layers, activation, output })
    }

    /// The number of scores.
    pub fn classes(&self) -> i64 {
        self.layers.last().map_or(0, |(weight, _)| weight.size()[0])
    }

    /// Features [N, width] (f32) to scores [N, classes].
    pub fn forward(&self, features: &Tensor) -> Tensor {
        let mut x = features.shallow_clone();
        for (i, (weight, bias)) in self.layers.iter().enumerate() {
            x = x.linear(weight, bias.as_ref());
            if i + 1 < self.layers.len() {
                x = match self.activation {
                    HeadActivation::None => x,
                    HeadActivation::Relu => x.relu(),
                    HeadActivation::Gelu => x.gelu("none"),
                };
            }
        }
        match self.output {
            HeadOutput::None => x,
            HeadOutput::Sigmoid => x.sigmoid(),
            HeadOutput::Softmax => x.softmax(-1, Kind::Float),
        }
    }
}

/// The names of the weights of linear layers, in the order of the numbers in them: 2 before 10.
fn layer_names(names: Vec<String>) -> Vec<String> {
    let numbers = |name: &str| -> Vec<u64> { name.split('.').filter_map(|part| part.parse().ok()).collect() };
    let mut weights: Vec<String> =
        names.into_iter().filter(|name| name == "weight" || name.ends_with(".weight")).collect();
    weights.sort_by_key(|name| numbers(name));
    weights
}

#[cfg(test)]
mod tests {
    use super::*;

    fn save(tensors: &[(&str, &[i64])]) -> tempfile::NamedTempFile {
        let file = tempfile::Builder::new().suffix(".safetensors").tempfile().unwrap();
        let tensor = |(i, (name, shape)): (usize, &(&str, &[i64]))| {
            ((*name).to_owned(), Tensor::full(*shape, 0.5 - i as f64, (Kind::Float, Device::Cpu)))
        };
        let tensors: Vec<_> = tensors.iter().enumerate().map(tensor).collect();
        Tensor::write_safetensors(&tensors, file.path()).unwrap();
        file
    }

    fn load(
        tensors: &[(&str, &[i64])],
        activation: HeadActivation,
        output: HeadOutput,
    ) -> Result<ScoreHead, String> {
        let file = save(tensors);
        ScoreHead::load(file.path(), 3, activation, output, Device::Cpu).map_err(|e| e.to_string())
    }

    fn score(head: &ScoreHead) -> Vec<f32> {
        Vec::try_from(head.forward(&Tensor::ones([1, 3], (Kind::Float, Device::Cpu))).view([-1])).unwrap()
    }

    #[test]
    fn layers_follow_the_numbers_in_their_names() {
        let names = ["layers.10.weight", "layers.2.weight", "layers.2.bias", "scale"].map(String::from);
        assert_eq!(layer_names(names.to_vec()), ["layers.2.weight", "layers.10.weight"]);
        // 3 x 0.5 + -0.5 = 1, of which two, times -1.5.
        let tensors: [(&str, &[i64]); 3] =
            [("a.2.weight", &[2, 3]), ("a.2.bias", &[2]), ("a.10.weight", &[1, 2])];
        let head = load(&tensors, HeadActivation::None, HeadOutput::None).unwrap();
        assert_eq!((score(&head), head.classes()), (vec![-3.0], 1));
        let sigmoid = load(&tensors, HeadActivation::Relu, HeadOutput::Sigmoid).unwrap();
        assert!((score(&sigmoid)[0] - 0.047_425_87).abs() < 1e-6);
        let classes = load(&[("weight", &[4, 3])], HeadActivation::None, HeadOutput::Softmax).unwrap();
        assert_eq!((score(&classes), classes.classes()), (vec![0.25; 4], 4));
    }

    #[test]
    fn layers_that_do_not_fit_are_refused_by_name() {
        for (tensors, expected) in [
            (&[("weight", &[1, 4][..])][..], "weight takes 4 numbers, and the features have 3"),
            (&[("0.weight", &[2, 3]), ("1.weight", &[1, 3])], "the outputs of 0.weight have 2"),
            (&[("weight", &[1, 3, 1])], "two dimensions"),
            (&[("weight", &[1, 3]), ("bias", &[2])], "bias is [2], expected [1]"),
            (&[("scale", &[3])], "no `weight`"),
        ] {
            let message = load(tensors, HeadActivation::None, HeadOutput::None).unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
    }
}
