//! The stage `Encode`: prepared rows in, latent moments and text embeddings out, one output row per
//! input row. It runs the frozen VAE and text encoder. The caller decides which rows are encoded
//! together.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, new_null_array};
use arrow::datatypes::Schema;
use tch::{Device, Kind, Tensor, no_grad};
use tidemill_data::prepare::{CAPTION_PIXELS, SCORE_PIXELS};
use tidemill_models::{AutoencoderKl, ClipTextModel, ModelFolder};
use tidemill_store::TensorSpec;
use tidemill_torch::{Download, guard, tensor_from_bytes, upload};

use crate::encode::config::{EncodeConfig, StoredText};
use crate::encode::encoded_column::{EncodedColumn, quarantine_failed};
use crate::encode::prepared_columns::{Pixels, TokenIds};
use crate::encode::recaption_stage::RecaptionStage;
use crate::encode::score_stage::ScoreStage;
use crate::error::{Error, Result};

/// The reason of a row whose result cannot be stored in f16.
const NOT_FINITE: &str = "encode: the result is not finite in f16";

/// The frozen models on one device.
#[derive(Debug)]
pub struct Encode {
    scores: Option<ScoreStage>,
    recaption: Option<RecaptionStage>,
    vae: AutoencoderKl,
    text: TextOutput,
    device: Device,
    kind: Kind,
    batch_size: usize,
}

/// What the column `text` holds.
#[derive(Debug)]
enum TextOutput {
    /// Text embeddings, and the number format in which they are stored.
    Embeddings(Box<ClipTextModel>, tidemill_store::Dtype),
    /// Token ids, unchanged.
    TokenIds,
}

impl Encode {
    /// Loads VAE and text encoder onto `device`.
    ///
    /// # Errors
    /// If a model is missing or not supported, or the device is out of memory.
    pub fn load(models: &ModelFolder, config: &EncodeConfig, device: Device) -> Result<Self> {
        // Keeps freed memory in the process, because the next batch needs it again.
        tidemill_torch::install_cpu_allocator();
        let kind = config.dtype.to_kind();
        let encoder = || ClipTextModel::load(&models.text_encoder(), device, kind).map(Box::new);
        let text = match config.embeddings {
            StoredText::F16 => TextOutput::Embeddings(encoder()?, tidemill_store::Dtype::F16),
            StoredText::F8 => TextOutput::Embeddings(encoder()?, tidemill_store::Dtype::F8E4m3),
            StoredText::TokenIds => TextOutput::TokenIds,
        };
        Ok(Self {
            scores: None,
            recaption: None,
            vae: AutoencoderKl::load(&models.vae(), device, kind)?,
            text,
            device,
            kind,
            batch_size: config.batch_size,
        })
    }

    /// This stage, which then first computes scores and rejects rows by them.
    pub(crate) fn with_scores(self, scores: Option<ScoreStage>) -> Self {
        Self { scores, ..self }
    }

    /// This stage, which then replaces captions before they are encoded.
    pub(crate) fn with_captioner(self, recaption: Option<RecaptionStage>) -> Self {
        Self { recaption, ..self }
    }

    /// Encodes a batch of prepared rows. `token_ids` becomes `text`, each `pixels_R` becomes
    /// `latents_R` (mean and log-variance, f16, channels x height x width), and the other columns
    /// stay. Images of one size are encoded together. A row whose result is not finite in f16 is
    /// quarantined. If no embeddings are stored, `text` has the token ids.
    ///
    /// # Errors
    /// A column of another type than `Prepare` makes, or a failure of libtorch.
    pub fn run(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let scored = self.scores.as_ref().map(|scores| scores.run(batch)).transpose()?;
        let batch = scored.as_ref().unwrap_or(batch);
        let recaptioned = self.recaption.as_ref().map(|recaption| recaption.run(batch)).transpose()?;
        let batch = recaptioned.as_ref().unwrap_or(batch);
        let mut fields = Vec::with_capacity(batch.num_columns());
        let mut pending: Vec<(usize, PendingColumn)> = Vec::new();
        for (i, (field, column)) in batch.schema().fields().iter().zip(batch.columns()).enumerate() {
            if let Some(output) = self.launch_column(field.name(), column, batch)? {
                fields.push(Arc::new(output.column.field().clone()));
                pending.push((i, output));
            } else {
                fields.push(field.clone());
            }
        }
        // A GPU computes the later columns while the earlier ones are collected.
        let mut failed = vec![false; batch.num_rows()];
        let mut encoded: Vec<(usize, EncodedColumn)> = Vec::new();
        for (i, column) in pending {
            let column = column.collect()?;
            column.mark_not_finite(&mut failed);
            encoded.push((i, column));
        }
        let mut columns = batch.columns().to_vec();
        for (i, column) in encoded {
            columns[i] = column.into_array(&failed)?;
        }
        let schema = Schema::new_with_metadata(fields, batch.schema().metadata().clone());
        let batch = RecordBatch::try_new(Arc::new(schema), columns)?;
        if failed.contains(&true) { quarantine_failed(&batch, &failed, NOT_FINITE) } else { Ok(batch) }
    }

    /// Returns what [`run`](Self::run) returns when it quarantines every row for this reason.
    ///
    /// # Errors
    /// A column of another type than `Prepare` makes.
    pub fn quarantine(&self, batch: &RecordBatch, reason: &str) -> Result<RecordBatch> {
        let schema = batch.schema();
        let columns = schema.fields().iter().zip(batch.columns()).map(|(field, column)| {
            let is_input = |name: &str| {
                ["token_ids", SCORE_PIXELS, CAPTION_PIXELS].contains(&name) || name.starts_with("pixels_")
            };
            match is_input(field.name()) {
                true => new_null_array(column.data_type(), column.len()),
                false => column.clone(),
            }
        });
        let empty = RecordBatch::try_new(schema.clone(), columns.collect())?;
        quarantine_failed(&self.run(&empty)?, &vec![true; batch.num_rows()], reason)
    }

    /// The most bytes of a row's encoded columns. `sizes` has, for each resolution, the image sizes
    /// in pixels that there can be.
    ///
    /// # Errors
    /// If a size is not a multiple of the VAE's downscale factor.
    pub fn row_bytes(&self, sizes: &[Vec<(u32, u32)>]) -> Result<u64> {
        let mut bytes = self.text_spec(tidemill_data::tokenizer::CONTEXT).decoded().bytes();
        for sizes in sizes {
            let latents = sizes.iter().map(|size| Ok(self.latents_shape(*size)?.iter().product::<i64>()));
            let most = latents.collect::<Result<Vec<_>>>()?.into_iter().max().unwrap_or(0);
            bytes += 2 * most as usize;
        }
        Ok(bytes as u64)
    }

    /// Encodes one caption's token ids to the bytes of a row of `text`, little-endian: the last
    /// hidden state in f16, row-major, or the ids themselves.
    ///
    /// # Errors
    /// A failure of libtorch, such as an id outside the vocabulary.
    pub fn encode_caption(&self, ids: &[i32]) -> Result<Vec<u8>> {
        match &self.text {
            TextOutput::TokenIds => Ok(to_le_bytes(ids)),
            TextOutput::Embeddings(encoder, _) => {
                let embeddings = self.launch_text(encoder, ids, 1)?;
                Ok(embeddings.wait_for_bytes().map_err(tidemill_models::Error::from)?.to_vec())
            }
        }
    }

    /// The dtype and shape in which a caption of `tokens` token ids is stored.
    pub fn text_spec(&self, tokens: usize) -> TensorSpec {
        let tokens = tokens as u32;
        match &self.text {
            TextOutput::Embeddings(encoder, dtype) => {
                TensorSpec { dtype: *dtype, shape: vec![tokens, encoder.config().hidden_size as u32] }
            }
            TextOutput::TokenIds => TensorSpec { dtype: tidemill_store::Dtype::I32, shape: vec![tokens] },
        }
    }

    /// Shape of one image's moments, for its width and height in pixels: twice the latent channels,
    /// height and width in latent cells.
    ///
    /// # Errors
    /// If a side is not a multiple of the VAE's downscale factor.
    pub fn latents_shape(&self, (width, height): (u32, u32)) -> Result<[i64; 3]> {
        let config = self.vae.config();
        let factor = config.downscale_factor();
        let (width, height) = (i64::from(width), i64::from(height));
        if width % factor != 0 || height % factor != 0 {
            let message =
                format!("{width}x{height} pixels are not multiples of the VAE's downscale factor {factor}");
            return Err(Error::Encode(message));
        }
        Ok([2 * config.latent_channels, height / factor, width / factor])
    }

    /// The factor between stored latents and the U-Net's input.
    pub fn scaling_factor(&self) -> f64 {
        self.vae.config().scaling_factor
    }

    /// Gives the device the work for a column; `None` for columns that stay as they are.
    fn launch_column(
        &self,
        name: &str,
        column: &ArrayRef,
        batch: &RecordBatch,
    ) -> Result<Option<PendingColumn>> {
        if name == "token_ids" {
            return self.launch_texts(&TokenIds::from_column(column)?).map(Some);
        }
        match name.strip_prefix("pixels_").and_then(|r| r.parse().ok()) {
            Some(resolution) => self.launch_images(&Pixels::from_batch(batch, resolution)?).map(Some),
            None => Ok(None),
        }
    }

    fn launch_images(&self, pixels: &Pixels) -> Result<PendingColumn> {
        let shape = |size: &Option<(u32, u32)>| size.map(|size| self.latents_shape(size)).transpose();
        let shapes = pixels.sizes.iter().map(shape).collect::<Result<Vec<_>>>()?;
        let column = EncodedColumn::latents(pixels.resolution, &shapes, shape(&pixels.only_size)?);
        let mut pending = PendingColumn { column, results: Vec::new() };
        for ((width, height), rows) in pixels.group_by_size() {
            for rows in rows.chunks(self.batch_size) {
                let (bytes, n) = (pixels.concat_rows(rows), rows.len() as i64);
                let latents = self.launch_model(|| {
                    let shape = [n, 3, height.into(), width.into()];
                    let images = tensor_from_bytes(&bytes, Kind::Uint8, &shape, Kind::Uint8, self.device);
                    self.vae.encode(&normalize(&images).to_kind(self.kind))
                })?;
                pending.add(rows, latents)?;
            }
        }
        Ok(pending)
    }

    fn launch_texts(&self, ids: &TokenIds) -> Result<PendingColumn> {
        let column = EncodedColumn::text(&self.text_spec(ids.length).decoded(), ids.valid.clone());
        let mut pending = PendingColumn { column, results: Vec::new() };
        let rows: Vec<usize> = (0..ids.valid.len()).filter(|row| ids.valid[*row]).collect();
        for (chunk, rows) in ids.ids().chunks(self.batch_size * ids.length).zip(rows.chunks(self.batch_size))
        {
            match &self.text {
                TextOutput::TokenIds => pending.column.set_rows(rows, &to_le_bytes(chunk)),
                TextOutput::Embeddings(encoder, _) => {
                    pending.add(rows, self.launch_text(encoder, chunk, rows.len() as i64)?)?;
                }
            }
        }
        Ok(pending)
    }

    fn launch_text(&self, encoder: &ClipTextModel, ids: &[i32], rows: i64) -> Result<Download> {
        self.launch_model(|| {
            let ids = upload(&Tensor::from_slice(ids).view([rows, -1]), self.device);
            encoder.forward(&ids.to_kind(Kind::Int64))
        })
    }

    /// Runs a model without gradients, and starts to copy its result to the host, row-major and in f16.
    fn launch_model(&self, forward: impl FnOnce() -> Tensor) -> Result<Download> {
        guard(|| no_grad(forward).to_kind(Kind::Half).contiguous())
            .and_then(|result| Download::start(&result))
            .map_err(|error| tidemill_models::Error::from(error).into())
    }
}

/// A column some of whose values a GPU still computes.
struct PendingColumn {
    column: EncodedColumn,
    /// The numbers of some rows, and their values on the way.
    results: Vec<(Vec<usize>, Download)>,
}

impl PendingColumn {
    /// Adds the values of some rows. A CPU has computed them: they are stored at once, and their memory is free
    /// for what is computed next.
    fn add(&mut self, rows: &[usize], values: Download) -> Result<()> {
        if values.is_complete() {
            let bytes = values.wait_for_bytes().map_err(tidemill_models::Error::from)?;
            self.column.set_rows(rows, bytes);
        } else {
            self.results.push((rows.to_vec(), values));
        }
        Ok(())
    }

    /// Waits for all values.
    fn collect(self) -> Result<EncodedColumn> {
        let Self { mut column, results } = self;
        for (rows, values) in results {
            column.set_rows(&rows, values.wait_for_bytes().map_err(tidemill_models::Error::from)?);
        }
        Ok(column)
    }
}

fn to_le_bytes(ids: &[i32]) -> Vec<u8> {
    ids.iter().flat_map(|id| id.to_le_bytes()).collect()
}

/// Maps u8 pixels to [-1, 1], with the operations of diffusers' `VaeImageProcessor` in the same
/// order: x / 255, then 2 x - 1, in f32.
fn normalize(images: &Tensor) -> Tensor {
    images.to_kind(Kind::Float) / 255.0 * 2.0 - 1.0
}
