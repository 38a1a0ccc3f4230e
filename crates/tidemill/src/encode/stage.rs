//! The stage `Encode`: prepared rows in, latent moments and text embeddings out, one output row per
//! input row. It runs the frozen VAE and text encoder. The caller decides which rows are encoded
//! together.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, new_null_array};
use arrow::datatypes::{FieldRef, Schema};
use tch::{Device, Kind, Tensor};
use tidemill_data::columns::names::token_ids_encoder;
use tidemill_data::prepare::{CAPTION_PIXELS, SCORE_PIXELS};
use tidemill_models::{AutoencoderKl, DenoiserConfig, LatentScale, ModelFolder};
use tidemill_store::{TensorSpec, TextColumn};
use tidemill_torch::{Download, tensor_from_bytes};

use crate::encode::batch_sizes::split_batches;
use crate::encode::config::EncodeConfig;
use crate::encode::encoded_column::{EncodedColumn, quarantine_failed};
use crate::encode::launch_model::launch_model;
use crate::encode::prepared_columns::{Pixels, TokenIds};
use crate::encode::recaption_stage::RecaptionStage;
use crate::encode::score_stage::ScoreStage;
use crate::encode::text_stage::{SharedTokenizer, TextStage, TextValues};
use crate::encode::time_ids::time_ids_column;
use crate::error::{Error, Result};

/// The reason of a row whose result cannot be stored in f16.
const NOT_FINITE: &str = "encode: the result is not finite in f16";

/// The same where the models compute in f16, in which some VAEs overflow, such as SDXL's.
const OVERFLOW: &str = "encode: the result is not finite; models that overflow with encode.dtype = \"f16\" need \
                        \"bf16\" or \"f32\"";

/// The frozen models on one device.
#[derive(Debug)]
pub struct Encode {
    scores: Option<ScoreStage>,
    recaption: Option<RecaptionStage>,
    vae: AutoencoderKl,
    text: TextStage,
    /// Whether the U-Net is told sizes of image and crop.
    has_time_ids: bool,
    device: Device,
    kind: Kind,
    batch_size: usize,
}

impl Encode {
    /// Loads VAE and text encoders onto `device`.
    ///
    /// # Errors
    /// If a model is missing or not supported, or the device is out of memory.
    pub fn load(models: &ModelFolder, config: &EncodeConfig, device: Device) -> Result<Self> {
        // Keeps freed memory in the process, because the next batch needs it again.
        tidemill_torch::install_cpu_allocator();
        let kind = config.dtype.to_kind();
        Ok(Self {
            scores: None,
            recaption: None,
            vae: AutoencoderKl::load(&models.vae(), device, kind)?,
            text: TextStage::load(models, config, device)?,
            has_time_ids: DenoiserConfig::read(models)?.takes_time_ids(),
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

    /// Encodes a batch of prepared rows. `token_ids` becomes `text` (`token_ids_2` becomes `text_2` and `pooled_2`),
    /// each `pixels_R` becomes `latents_R` (mean and log-variance, f16, channels x height x width), and the other
    /// columns stay. For SDXL there are `time_ids_R` as well. Images of one size are encoded together. A row whose
    /// result is not finite in f16 is quarantined. If no embeddings are stored, `text` has the token ids.
    ///
    /// # Errors
    /// A column of another type than `Prepare` makes, or a failure of libtorch.
    pub fn run(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let scored = self.scores.as_ref().map(|scores| scores.run(batch)).transpose()?;
        let batch = scored.as_ref().unwrap_or(batch);
        let recaptioned = self.recaption.as_ref().map(|recaption| recaption.run(batch)).transpose()?;
        let batch = recaptioned.as_ref().unwrap_or(batch);
        let mut outputs: Vec<OutputColumn<PendingColumn>> = Vec::with_capacity(batch.num_columns());
        for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
            match self.launch_columns(field.name(), column, batch)? {
                Some(pending) => outputs.extend(pending.into_iter().map(OutputColumn::Encoded)),
                None => outputs.push(OutputColumn::Unchanged(field.clone(), column.clone())),
            }
            if let Some(resolution) = resolution_of(field.name()).filter(|_| self.has_time_ids) {
                let (field, column) = time_ids_column(batch, resolution)?;
                outputs.push(OutputColumn::Unchanged(Arc::new(field), column));
            }
        }
        // A GPU computes the later columns while the earlier ones are collected.
        let mut failed = vec![false; batch.num_rows()];
        let mut collect = |column: PendingColumn| {
            let column = column.collect()?;
            column.mark_not_finite(&mut failed);
            Ok(column)
        };
        let encoded =
            outputs.into_iter().map(|output| output.try_map(&mut collect)).collect::<Result<Vec<_>>>()?;
        let (fields, columns): (Vec<FieldRef>, Vec<ArrayRef>) = encoded
            .into_iter()
            .map(|output| output.into_field_and_array(&failed))
            .collect::<Result<Vec<_>>>()?
            .into_iter()
            .unzip();
        let schema = Schema::new_with_metadata(fields, batch.schema().metadata().clone());
        let batch = RecordBatch::try_new(Arc::new(schema), columns)?;
        let reason = if self.kind == Kind::Half { OVERFLOW } else { NOT_FINITE };
        if failed.contains(&true) { quarantine_failed(&batch, &failed, reason) } else { Ok(batch) }
    }

    /// Returns what [`run`](Self::run) returns when it quarantines every row for this reason.
    ///
    /// # Errors
    /// A column of another type than `Prepare` makes.
    pub fn quarantine(&self, batch: &RecordBatch, reason: &str) -> Result<RecordBatch> {
        let schema = batch.schema();
        let columns = schema.fields().iter().zip(batch.columns()).map(|(field, column)| {
            let is_input = |name: &str| {
                [SCORE_PIXELS, CAPTION_PIXELS].contains(&name)
                    || token_ids_encoder(name).is_some()
                    || resolution_of(name).is_some()
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
        let texts = self.text_columns();
        let mut bytes: usize = texts.values().map(|spec| spec.decoded().bytes()).sum();
        for sizes in sizes {
            let latents = sizes.iter().map(|size| Ok(self.latents_shape(*size)?.iter().product::<i64>()));
            let most = latents.collect::<Result<Vec<_>>>()?.into_iter().max().unwrap_or(0);
            bytes += 2 * most as usize;
        }
        Ok(bytes as u64)
    }

    /// Encodes one caption, tokenised for each text encoder, to the bytes of a row of the text columns, one behind
    /// the other, little-endian: embeddings in f16, row-major, or the ids themselves.
    ///
    /// # Errors
    /// A failure of libtorch, such as an id outside the vocabulary.
    pub fn encode_caption(&self, caption: &str, tokenizers: &[SharedTokenizer]) -> Result<Vec<u8>> {
        let mut row = Vec::new();
        for (encoder, tokenizer) in tokenizers.iter().enumerate() {
            let ids = tokenizer.encode_captions(&[caption])?;
            for values in self.text.encode(encoder, &ids, 1, self.device)? {
                row.extend(values.into_bytes()?);
            }
        }
        Ok(row)
    }

    /// The text columns, and the dtype and shape in which each holds a caption.
    pub fn text_columns(&self) -> BTreeMap<TextColumn, TensorSpec> {
        self.text.columns()
    }

    /// Whether rows have sizes of image and crop.
    pub fn has_time_ids(&self) -> bool {
        self.has_time_ids
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

    /// How stored latents become the network's input.
    pub fn latent_scale(&self) -> LatentScale {
        self.vae.config().latent_scale()
    }

    /// Gives the device the work for the columns that are made of one; `None` for columns that stay as they are.
    fn launch_columns(
        &self,
        name: &str,
        column: &ArrayRef,
        batch: &RecordBatch,
    ) -> Result<Option<Vec<PendingColumn>>> {
        if let Some(encoder) = token_ids_encoder(name) {
            return self.launch_texts(encoder, &TokenIds::from_column(column)?).map(Some);
        }
        match resolution_of(name) {
            Some(resolution) => Ok(Some(vec![self.launch_images(&Pixels::from_batch(batch, resolution)?)?])),
            None => Ok(None),
        }
    }

    fn launch_images(&self, pixels: &Pixels) -> Result<PendingColumn> {
        let shape = |size: &Option<(u32, u32)>| size.map(|size| self.latents_shape(size)).transpose();
        let shapes = pixels.sizes.iter().map(shape).collect::<Result<Vec<_>>>()?;
        let column = EncodedColumn::latents(pixels.resolution, &shapes, shape(&pixels.only_size)?);
        let mut pending = PendingColumn { column, results: Vec::new() };
        for ((width, height), rows) in pixels.group_by_size() {
            for rows in split_batches(&rows, self.batch_size) {
                let (bytes, n) = (pixels.concat_rows(rows), rows.len() as i64);
                let latents = launch_model(|| {
                    let shape = [n, 3, height.into(), width.into()];
                    let images = tensor_from_bytes(&bytes, Kind::Uint8, &shape, Kind::Uint8, self.device);
                    vec![self.vae.encode(&normalize(&images).to_kind(self.kind))]
                })?;
                latents.into_iter().try_for_each(|latents| pending.add(rows, latents))?;
            }
        }
        Ok(pending)
    }

    fn launch_texts(&self, encoder: usize, ids: &TokenIds) -> Result<Vec<PendingColumn>> {
        let columns = self.text.columns_of(encoder).into_iter().map(|(column, spec)| {
            let column = EncodedColumn::text(&column.to_string(), &spec.decoded(), ids.valid.clone());
            PendingColumn { column, results: Vec::new() }
        });
        let mut pending: Vec<PendingColumn> = columns.collect();
        let rows: Vec<usize> = (0..ids.valid.len()).filter(|row| ids.valid[*row]).collect();
        let captions: Vec<&[i32]> = ids.ids().chunks(ids.length).collect();
        let batches = split_batches(&captions, self.batch_size).zip(split_batches(&rows, self.batch_size));
        for (captions, rows) in batches {
            let values = self.text.encode(encoder, &captions.concat(), rows.len(), self.device)?;
            for (pending, values) in pending.iter_mut().zip(values) {
                match values {
                    TextValues::TokenIds(bytes) => pending.column.set_rows(rows, &bytes),
                    TextValues::Computed(values) => pending.add(rows, values)?,
                }
            }
        }
        Ok(pending)
    }
}

/// The resolution of a column `pixels_R`.
fn resolution_of(column: &str) -> Option<u32> {
    column.strip_prefix("pixels_")?.parse().ok()
}

/// A column of the output.
enum OutputColumn<C> {
    Unchanged(FieldRef, ArrayRef),
    Encoded(C),
}

impl<C> OutputColumn<C> {
    fn try_map<D>(self, f: impl FnOnce(C) -> Result<D>) -> Result<OutputColumn<D>> {
        Ok(match self {
            Self::Unchanged(field, column) => OutputColumn::Unchanged(field, column),
            Self::Encoded(column) => OutputColumn::Encoded(f(column)?),
        })
    }
}

impl OutputColumn<EncodedColumn> {
    /// The finished column. Failed rows of encoded columns are null.
    fn into_field_and_array(self, failed: &[bool]) -> Result<(FieldRef, ArrayRef)> {
        match self {
            Self::Unchanged(field, column) => Ok((field, column)),
            Self::Encoded(column) => {
                let field = Arc::new(column.field().clone());
                Ok((field, column.into_array(failed)?))
            }
        }
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

/// Maps u8 pixels to [-1, 1], with the operations of diffusers' `VaeImageProcessor` in the same
/// order: x / 255, then 2 x - 1, in f32.
fn normalize(images: &Tensor) -> Tensor {
    images.to_kind(Kind::Float) / 255.0 * 2.0 - 1.0
}
