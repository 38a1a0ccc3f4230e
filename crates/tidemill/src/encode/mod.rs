//! The stage `Encode`: prepared rows in, latent moments and text embeddings out, one output row per input row. It runs
//! the frozen VAE and text encoder; the caller decides where batches are cut.

mod columns;
mod config;

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, new_null_array};
use arrow::datatypes::Schema;
use half::f16;
use tch::{Device, Kind, Tensor, no_grad};
use tidemill_models::{AutoencoderKl, ClipTextModel, ModelFolder};
use tidemill_torch::guard;

use self::columns::{Encoded, Pixels, TokenIds, mark_failed};
pub use self::config::{Dtype, EncodeConfig, Latents};
use crate::error::{Error, Result};

/// The reason of a row whose result cannot be stored.
const NOT_FINITE: &str = "encode: the result is not finite in f16";

/// The frozen models on one device.
#[derive(Debug)]
pub struct Encode {
    vae: AutoencoderKl,
    text_encoder: ClipTextModel,
    device: Device,
    kind: Kind,
    batch_size: usize,
}

impl Dtype {
    /// As libtorch calls it.
    pub fn kind(self) -> Kind {
        match self {
            Self::F32 => Kind::Float,
            Self::Bf16 => Kind::BFloat16,
            Self::F16 => Kind::Half,
        }
    }
}

impl Encode {
    /// Loads VAE and text encoder onto `device`.
    ///
    /// # Errors
    /// If a model is missing or not supported, or the device is out of memory.
    pub fn load(models: &ModelFolder, config: &EncodeConfig, device: Device) -> Result<Self> {
        let kind = config.dtype.kind();
        Ok(Self {
            vae: AutoencoderKl::load(&models.vae(), device, kind)?,
            text_encoder: ClipTextModel::load(&models.text_encoder(), device, kind)?,
            device,
            kind,
            batch_size: config.batch_size,
        })
    }

    /// Encodes a batch of `Prepare`'s rows. `token_ids` becomes `text`, each `pixels_R` becomes `latents_R`, the
    /// other columns stay. Images of one size are encoded together. A row whose result is not finite in f16 is
    /// quarantined.
    ///
    /// # Errors
    /// A column of another type than `Prepare` gives, or a failure of libtorch.
    pub fn run(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let mut fields = Vec::with_capacity(batch.num_columns());
        let mut encoded: Vec<(usize, Encoded)> = Vec::new();
        for (i, (field, column)) in batch.schema().fields().iter().zip(batch.columns()).enumerate() {
            if let Some(output) = self.encode_column(field.name(), column, batch)? {
                fields.push(Arc::new(output.field().clone()));
                encoded.push((i, output));
            } else {
                fields.push(field.clone());
            }
        }
        let mut failed = vec![false; batch.num_rows()];
        for (_, column) in &encoded {
            column.mark_not_finite(&mut failed);
        }
        let mut columns = batch.columns().to_vec();
        for (i, column) in encoded {
            columns[i] = column.into_array(&failed)?;
        }
        let schema = Schema::new_with_metadata(fields, batch.schema().metadata().clone());
        let batch = RecordBatch::try_new(Arc::new(schema), columns)?;
        if failed.contains(&true) { mark_failed(&batch, &failed, NOT_FINITE) } else { Ok(batch) }
    }

    /// What [`run`](Self::run) gives for rows of which none can be encoded.
    ///
    /// # Errors
    /// A column of another type than `Prepare` gives.
    pub fn quarantine(&self, batch: &RecordBatch, reason: &str) -> Result<RecordBatch> {
        let schema = batch.schema();
        let columns = schema.fields().iter().zip(batch.columns()).map(|(field, column)| {
            match field.name() == "token_ids" || field.name().starts_with("pixels_") {
                true => new_null_array(column.data_type(), column.len()),
                false => column.clone(),
            }
        });
        let nothing = RecordBatch::try_new(schema.clone(), columns.collect())?;
        mark_failed(&self.run(&nothing)?, &vec![true; batch.num_rows()], reason)
    }

    /// Bytes that the encoded columns of a row take at most; `sizes` are those that its pixels can have, for each
    /// resolution.
    ///
    /// # Errors
    /// If a size is no multiple of the VAE's factor.
    pub fn row_bytes(&self, sizes: &[Vec<(u32, u32)>]) -> Result<u64> {
        let mut values = self.text_shape(tidemill_data::tokenizer::CONTEXT as i64).iter().product::<i64>();
        for sizes in sizes {
            let latents = sizes.iter().map(|size| Ok(self.latents_shape(*size)?.iter().product::<i64>()));
            values += latents.collect::<Result<Vec<_>>>()?.into_iter().max().unwrap_or(0);
        }
        Ok(2 * values as u64)
    }

    /// The last hidden state of one caption's token ids: shape [ids, D], row-major.
    ///
    /// # Errors
    /// A failure of libtorch, such as an id outside the vocabulary.
    pub fn embed(&self, ids: &[i32]) -> Result<Vec<f16>> {
        self.embed_chunk(ids, 1)
    }

    /// Shape of one caption's embedding for `tokens` token ids.
    pub fn text_shape(&self, tokens: i64) -> [i64; 2] {
        [tokens, self.text_encoder.config().hidden_size]
    }

    /// Shape of one image's moments for its width and height in pixels.
    ///
    /// # Errors
    /// If a side is no multiple of the VAE's factor.
    pub fn latents_shape(&self, (width, height): (u32, u32)) -> Result<[i64; 3]> {
        let config = self.vae.config();
        let factor = config.downscale();
        let (width, height) = (i64::from(width), i64::from(height));
        if width % factor != 0 || height % factor != 0 {
            let message = format!("{width}x{height} pixels are no multiples of the VAE's factor {factor}");
            return Err(Error::Encode(message));
        }
        Ok([2 * config.latent_channels, height / factor, width / factor])
    }

    /// The factor between the stored latents and what the U-Net sees.
    pub fn scaling_factor(&self) -> f64 {
        self.vae.config().scaling_factor
    }

    fn encode_column(&self, name: &str, column: &ArrayRef, batch: &RecordBatch) -> Result<Option<Encoded>> {
        if name == "token_ids" {
            return self.encode_text(&TokenIds::read(column)?).map(Some);
        }
        match name.strip_prefix("pixels_").and_then(|r| r.parse().ok()) {
            Some(resolution) => self.encode_images(&Pixels::read(batch, resolution)?).map(Some),
            None => Ok(None),
        }
    }

    fn encode_images(&self, pixels: &Pixels) -> Result<Encoded> {
        let shape = |size: &Option<(u32, u32)>| size.map(|size| self.latents_shape(size)).transpose();
        let shapes = pixels.sizes.iter().map(shape).collect::<Result<Vec<_>>>()?;
        let mut encoded = Encoded::latents(pixels.resolution, &shapes, shape(&pixels.only_size)?);
        for ((width, height), rows) in pixels.groups() {
            for rows in rows.chunks(self.batch_size) {
                let (bytes, n) = (pixels.bytes(rows), rows.len() as i64);
                let values = self.values(|| {
                    let shape = [n, 3, height.into(), width.into()];
                    let images = Tensor::from_data_size(&bytes, &shape, Kind::Uint8).to(self.device);
                    self.vae.encode(&normalize(&images).to_kind(self.kind))
                })?;
                encoded.put(rows, &values);
            }
        }
        Ok(encoded)
    }

    fn encode_text(&self, ids: &TokenIds) -> Result<Encoded> {
        let mut encoded = Encoded::text(&self.text_shape(ids.length as i64), ids.valid.clone());
        let rows: Vec<usize> = (0..ids.valid.len()).filter(|row| ids.valid[*row]).collect();
        let chunks = ids.ids().chunks(self.batch_size * ids.length).zip(rows.chunks(self.batch_size));
        for (chunk, rows) in chunks {
            encoded.put(rows, &self.embed_chunk(chunk, rows.len() as i64)?);
        }
        Ok(encoded)
    }

    fn embed_chunk(&self, ids: &[i32], rows: i64) -> Result<Vec<f16>> {
        self.values(|| {
            let ids = Tensor::from_slice(ids).view([rows, -1]).to(self.device).to_kind(Kind::Int64);
            self.text_encoder.forward(&ids)
        })
    }

    /// Runs a model without gradients and fetches its result.
    fn values(&self, forward: impl FnOnce() -> Tensor) -> Result<Vec<f16>> {
        let run = || {
            let result = no_grad(forward).to_kind(Kind::Half).to(Device::Cpu).contiguous();
            let mut values = vec![f16::ZERO; result.numel()];
            let n = values.len();
            result.copy_data(&mut values, n);
            values
        };
        guard(run).map_err(|e| tidemill_models::Error::from(e).into())
    }
}

/// u8 pixels to [-1, 1], in the order of operations of diffusers' `VaeImageProcessor`: x / 255, then 2 x - 1, in f32.
fn normalize(images: &Tensor) -> Tensor {
    images.to_kind(Kind::Float) / 255.0 * 2.0 - 1.0
}
