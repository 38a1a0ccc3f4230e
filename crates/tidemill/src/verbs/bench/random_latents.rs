//! Latents and captions drawn at random, as data of the trainer: a bench needs no dataset.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};
use tidemill_store::dataset::spec::FORMAT_VERSION;
use tidemill_store::stream::{Batch, SkippedRows};
use tidemill_store::{Bucket, DatasetSpec, Dtype, ModelDigests, TensorSpec};
use tidemill_torch::{guard, tensor_to_bytes};
use tidemill_train::{BatchStream, Error, Phase, TrainConfig, TrainingData};

/// Endless epochs of random rows of one size. After `batches` batches a stream ends with an error, so
/// that the trainer stops without a checkpoint, which may have gigabytes.
pub struct RandomLatents {
    /// Pixels.
    pub resolution: u32,
    /// Shape of an image's moments.
    pub moments: [i64; 3],
    /// Dtype and shape of a caption.
    pub text: TensorSpec,
    /// The VAE's factor between its latents and the input of the U-Net.
    pub scaling_factor: f64,
    /// Batches of a stream.
    pub batches: u64,
    /// The caption of all rows, also the empty one.
    caption: Vec<u8>,
}

impl RandomLatents {
    /// Rows of this size, in streams of so many batches.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn new(
        resolution: u32,
        moments: [i64; 3],
        text: TensorSpec,
        scaling_factor: f64,
        batches: u64,
    ) -> Result<Self, Error> {
        let shape: Vec<i64> = text.shape.iter().map(|n| i64::from(*n)).collect();
        let caption = match text.dtype {
            // A token id that every vocabulary has.
            Dtype::I32 => guard(|| Tensor::zeros(&shape, (Kind::Int, Device::Cpu)))?,
            _ => guard(|| Tensor::randn(&shape, (Kind::Half, Device::Cpu)))?,
        };
        let caption = tensor_to_bytes(&caption);
        Ok(Self { resolution, moments, text, scaling_factor, batches, caption })
    }
}

impl TrainingData for RandomLatents {
    fn spec(&self) -> Result<DatasetSpec, Error> {
        let moments = TensorSpec::f16(self.moments.map(|n| n as u32).to_vec());
        let models = ModelDigests { vae: "random".into(), text_encoder: None, tokenizer: "random".into() };
        Ok(DatasetSpec {
            format: FORMAT_VERSION,
            latents: BTreeMap::from([(Bucket::square(self.resolution), moments)]),
            latents_kind: "moments".into(),
            text: self.text.clone(),
            models,
            scaling_factor: self.scaling_factor,
            validation_share: 0.0,
            row_group_rows: DatasetSpec::ROW_GROUP_ROWS,
            prepare: Value::Null,
            rows: Value::Null,
        })
    }

    fn empty_caption(&self) -> &[u8] {
        &self.caption
    }

    fn identity(&self) -> (&'static str, Value) {
        ("random", json!(self.resolution))
    }

    fn check_phases(&self, _train: &TrainConfig) -> Result<(), Error> {
        Ok(())
    }

    fn open_stream(&self, phase: &Phase<'_>, _state: Option<&Value>) -> Result<Box<dyn BatchStream>, Error> {
        let rows = phase.world.local_batch_size(phase.global_batch());
        let shape = [&[rows as i64], &self.moments[..]].concat();
        let moments = guard(|| Tensor::randn(&shape, (Kind::Half, Device::Cpu)))?;
        Ok(Box::new(RandomStream {
            bucket: Bucket::square(self.resolution),
            latents: tensor_to_bytes(&moments),
            text: self.caption.repeat(rows),
            rows,
            number: 0,
            batches: self.batches,
        }))
    }
}

/// The same rows in every batch.
#[derive(Debug)]
struct RandomStream {
    bucket: Bucket,
    latents: Vec<u8>,
    text: Vec<u8>,
    rows: usize,
    number: u64,
    batches: u64,
}

impl BatchStream for RandomStream {
    fn wait_until_ready(&mut self, _timeout: Duration) -> Result<bool, Error> {
        Ok(true)
    }

    fn next_batch(&mut self) -> Result<Batch, Error> {
        if self.number == self.batches {
            return Err(Error::Data("all batches of the bench are done".into()));
        }
        let first = self.number * self.rows as u64;
        self.number += 1;
        Ok(Batch {
            number: self.number - 1,
            bucket: self.bucket,
            positions: (0..self.rows as u32).collect(),
            sample_ids: (first..first + self.rows as u64).collect(),
            epochs: vec![0; self.rows],
            latents: self.latents.clone().into(),
            text: self.text.clone().into(),
        })
    }

    fn state(&self, _next_phase: Option<&Phase<'_>>) -> Result<Value, Error> {
        Ok(json!(self.number))
    }

    fn unreadable_rows(&self) -> SkippedRows {
        SkippedRows::new()
    }
}
