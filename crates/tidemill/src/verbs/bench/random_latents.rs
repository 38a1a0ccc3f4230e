//! Latents and captions drawn at random, as data of the trainer: a bench needs no dataset.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};
use tidemill_models::LatentScale;
use tidemill_store::dataset::spec::FORMAT_VERSION;
use tidemill_store::stream::{Batch, SkippedRows};
use tidemill_store::{Bucket, DatasetSpec, Dtype, ModelDigests, TensorSpec, TextColumn};
use tidemill_torch::{guard, tensor_to_bytes};
use tidemill_train::{BatchStream, Error, Phase, TrainConfig, TrainingData};

/// Endless epochs of random rows of one size. After `batches` batches a stream ends with an error, so
/// that the trainer stops without a checkpoint, which may have gigabytes.
pub struct RandomLatents {
    row: RandomRow,
    /// Batches of a stream.
    batches: u64,
    /// The text columns of all rows, also of the empty caption, one behind the other.
    caption: Vec<u8>,
}

/// What a row is made of.
pub struct RandomRow {
    /// Pixels.
    pub resolution: u32,
    /// Shape of an image's moments.
    pub moments: [i64; 3],
    /// Dtypes and shapes of a caption.
    pub text: BTreeMap<TextColumn, TensorSpec>,
    /// Whether there are sizes of image and crop.
    pub has_time_ids: bool,
    /// How the VAE's latents become the network's.
    pub scale: LatentScale,
}

impl RandomLatents {
    /// Rows of this size, in streams of so many batches.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn new(row: RandomRow, batches: u64) -> Result<Self, Error> {
        let mut caption = Vec::new();
        for spec in row.text.values() {
            let shape: Vec<i64> = spec.shape.iter().map(|n| i64::from(*n)).collect();
            let values = match spec.dtype {
                // A token id that every vocabulary has.
                Dtype::I32 => guard(|| Tensor::zeros(&shape, (Kind::Int, Device::Cpu)))?,
                _ => guard(|| Tensor::randn(&shape, (Kind::Half, Device::Cpu)))?,
            };
            caption.extend(tensor_to_bytes(&values));
        }
        Ok(Self { row, batches, caption })
    }
}

impl TrainingData for RandomLatents {
    fn spec(&self) -> Result<DatasetSpec, Error> {
        let RandomRow { resolution, moments, text, has_time_ids, scale } = &self.row;
        let moments = TensorSpec::f16(moments.map(|n| n as u32).to_vec());
        let models = ModelDigests {
            vae: "random".into(),
            text_encoder: None,
            tokenizer: "random".into(),
            more_text_encoders: Vec::new(),
        };
        let mut more_text = text.clone();
        let text = more_text.remove(&TextColumn::FIRST).unwrap_or_else(|| TensorSpec::f16([0]));
        Ok(DatasetSpec {
            format: FORMAT_VERSION,
            latents: BTreeMap::from([(Bucket::square(*resolution), moments)]),
            latents_kind: "moments".into(),
            text,
            more_text,
            has_time_ids: *has_time_ids,
            models,
            scaling_factor: scale.factor,
            shift_factor: scale.shift,
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
        ("random", json!(self.row.resolution))
    }

    fn check_phases(&self, _train: &TrainConfig) -> Result<(), Error> {
        Ok(())
    }

    fn open_stream(&self, phase: &Phase<'_>, _state: Option<&Value>) -> Result<Box<dyn BatchStream>, Error> {
        let rows = phase.world.local_batch_size(phase.global_batch());
        let shape = [&[rows as i64], &self.row.moments[..]].concat();
        let moments = guard(|| Tensor::randn(&shape, (Kind::Half, Device::Cpu)))?;
        let side = self.row.resolution as i32;
        let time_ids: Vec<u8> = [side, side, 0, 0, side, side].map(i32::to_le_bytes).concat();
        Ok(Box::new(RandomStream {
            bucket: Bucket::square(self.row.resolution),
            latents: tensor_to_bytes(&moments),
            text: self
                .spec()?
                .split_text_row(&self.caption)
                .into_iter()
                .map(|text| text.repeat(rows))
                .collect(),
            time_ids: self.row.has_time_ids.then(|| time_ids.repeat(rows)),
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
    text: Vec<Vec<u8>>,
    time_ids: Option<Vec<u8>>,
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
            text: self.text.iter().map(|text| text.clone().into()).collect(),
            time_ids: self.time_ids.clone().map(Into::into),
        })
    }

    fn state(&self, _next_phase: Option<&Phase<'_>>) -> Result<Value, Error> {
        Ok(json!(self.number))
    }

    fn unreadable_rows(&self) -> SkippedRows {
        SkippedRows::new()
    }
}
