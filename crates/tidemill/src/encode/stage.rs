//! The stage `Encode`: prepared rows in, latent moments and text embeddings out, one output row per input row. It runs
//! the frozen VAE and text encoder; the caller decides where batches are cut.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, new_null_array};
use arrow::datatypes::Schema;
use tch::{Device, Kind, Tensor, no_grad};
use tidemill_models::{AutoencoderKl, ClipTextModel, ModelFolder};
use tidemill_store::TensorSpec;
use tidemill_torch::guard;

use crate::encode::columns::{Encoded, Pixels, TokenIds, mark_failed};
use crate::encode::config::{Dtype, Embeddings, EncodeConfig};
use crate::error::{Error, Result};

/// The reason of a row whose result cannot be stored.
const NOT_FINITE: &str = "encode: the result is not finite in f16";

/// The frozen models on one device.
#[derive(Debug)]
pub struct Encode {
    vae: AutoencoderKl,
    text: Text,
    device: Device,
    kind: Kind,
    batch_size: usize,
}

/// What captions become.
#[derive(Debug)]
enum Text {
    /// Embeddings, and how they are stored.
    Embeddings(Box<ClipTextModel>, tidemill_store::Dtype),
    /// Token ids, as they come.
    TokenIds,
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
        // What a batch frees the next one needs again.
        tidemill_torch::install_cpu_allocator();
        let kind = config.dtype.kind();
        let encoder = || ClipTextModel::load(&models.text_encoder(), device, kind).map(Box::new);
        let text = match config.embeddings {
            Embeddings::F16 => Text::Embeddings(encoder()?, tidemill_store::Dtype::F16),
            Embeddings::F8 => Text::Embeddings(encoder()?, tidemill_store::Dtype::F8E4m3),
            Embeddings::None => Text::TokenIds,
        };
        Ok(Self {
            vae: AutoencoderKl::load(&models.vae(), device, kind)?,
            text,
            device,
            kind,
            batch_size: config.batch_size,
        })
    }

    /// Encodes a batch of `Prepare`'s rows. `token_ids` becomes `text`, each `pixels_R` becomes `latents_R`, the
    /// other columns stay. Images of one size are encoded together. A row whose result is not finite in f16 is
    /// quarantined. Where no embeddings are stored, `text` has the token ids.
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
        let mut bytes = self.text_form(tidemill_data::tokenizer::CONTEXT).decoded().bytes();
        for sizes in sizes {
            let latents = sizes.iter().map(|size| Ok(self.latents_shape(*size)?.iter().product::<i64>()));
            let most = latents.collect::<Result<Vec<_>>>()?.into_iter().max().unwrap_or(0);
            bytes += 2 * most as usize;
        }
        Ok(bytes as u64)
    }

    /// What one caption's token ids become in the column `text`, little-endian: the last hidden state, f16, row-major, or
    /// the ids themselves.
    ///
    /// # Errors
    /// A failure of libtorch, such as an id outside the vocabulary.
    pub fn caption(&self, ids: &[i32]) -> Result<Vec<u8>> {
        self.text_rows(ids, 1)
    }

    /// How a caption of `tokens` token ids is stored.
    pub fn text_form(&self, tokens: usize) -> TensorSpec {
        let tokens = tokens as u32;
        match &self.text {
            Text::Embeddings(encoder, dtype) => {
                TensorSpec { dtype: *dtype, shape: vec![tokens, encoder.config().hidden_size as u32] }
            }
            Text::TokenIds => TensorSpec { dtype: tidemill_store::Dtype::I32, shape: vec![tokens] },
        }
    }

    /// Shape of one image's moments for its width and height in pixels.
    ///
    /// # Errors
    /// If a side is no multiple of the VAE's factor.
    pub fn latents_shape(&self, (width, height): (u32, u32)) -> Result<[i64; 3]> {
        let config = self.vae.config();
        let factor = config.downscale_factor();
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
        let mut encoded = Encoded::text(&self.text_form(ids.length).decoded(), ids.valid.clone());
        let rows: Vec<usize> = (0..ids.valid.len()).filter(|row| ids.valid[*row]).collect();
        let chunks = ids.ids().chunks(self.batch_size * ids.length).zip(rows.chunks(self.batch_size));
        for (chunk, rows) in chunks {
            encoded.put(rows, &self.text_rows(chunk, rows.len() as i64)?);
        }
        Ok(encoded)
    }

    fn text_rows(&self, ids: &[i32], rows: i64) -> Result<Vec<u8>> {
        match &self.text {
            Text::TokenIds => Ok(ids.iter().flat_map(|id| id.to_le_bytes()).collect()),
            Text::Embeddings(encoder, _) => self.values(|| {
                let ids = Tensor::from_slice(ids).view([rows, -1]).to(self.device).to_kind(Kind::Int64);
                encoder.forward(&ids)
            }),
        }
    }

    /// Runs a model without gradients and fetches its result as little-endian f16.
    fn values(&self, forward: impl FnOnce() -> Tensor) -> Result<Vec<u8>> {
        let run = || {
            let result = no_grad(forward).to_kind(Kind::Half).to(Device::Cpu).contiguous();
            // As they lie in memory: libtorch runs on little-endian machines only.
            let mut bytes = vec![0; 2 * result.numel()];
            result.copy_data_u8(&mut bytes, result.numel());
            bytes
        };
        guard(run).map_err(|e| tidemill_models::Error::from(e).into())
    }
}

/// u8 pixels to [-1, 1], in the order of operations of diffusers' `VaeImageProcessor`: x / 255, then 2 x - 1, in f32.
fn normalize(images: &Tensor) -> Tensor {
    images.to_kind(Kind::Float) / 255.0 * 2.0 - 1.0
}
