//! The prepare stage as a whole.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::datatypes::{Schema, SchemaRef};
use rayon::prelude::*;

use crate::caption::config::CaptionConfig;
use crate::caption::stage::CaptionStage;
use crate::error::{Result, RowError};
use crate::filter::config::FilterConfig;
use crate::filter::filters::Filters;
use crate::filter::rule::FilterStage;
use crate::prepare::captioner_view::CaptionerView;
use crate::prepare::computed_scores::ComputedScores;
use crate::prepare::config::PrepareConfig;
use crate::prepare::digests::Digests;
use crate::prepare::extra_columns::ExtraColumns;
use crate::prepare::image_hashes::HashColumns;
use crate::prepare::input::{Input, InputColumns};
use crate::prepare::output::{Output, output_schema};
use crate::prepare::pixels::PixelWriter;
use crate::prepare::row::{Outcome, Row};
use crate::prepare::row_selection::RowSelector;
use crate::source::config::SourceConfig;
use crate::tokenizer::CaptionTokenizer;

/// Bytes of an output row without pixels and carried columns: 77 token ids, key, caption and small
/// columns.
const TEXT_BYTES: u64 = 2048;

/// The prepare stage: decodes, filters, crops, resizes and tokenizes. It can be used from any
/// number of threads.
pub struct Prepare {
    config: PrepareConfig,
    extra: ExtraColumns,
    digests: Digests,
    pub(super) columns: InputColumns,
    pub(super) selector: RowSelector,
    pub(super) pixels: PixelWriter,
    pub(super) tokenizer: Arc<dyn CaptionTokenizer>,
}

impl Prepare {
    /// Checks the configuration and creates the stage. All random choices follow from `seed` and
    /// the sample id.
    ///
    /// # Errors
    /// [`crate::Error::Config`] that names the key, also for a list of a filter that cannot be
    /// read.
    pub fn new(
        config: &PrepareConfig,
        filter: &FilterConfig,
        source: &SourceConfig,
        caption: &CaptionConfig,
        seed: u64,
        tokenizer: Arc<dyn CaptionTokenizer>,
    ) -> Result<Self> {
        config.validate()?;
        filter.validate()?;
        source.validate_columns()?;
        filter.validate_source(source)?;
        let captions = CaptionStage::new(caption, &source.columns, seed)?;
        let filters = Filters::new(filter)?;
        let captioner = caption.captioner_side().map(|side| CaptionerView { side });
        let hashes = HashColumns {
            sha256: config.hashes || filters.has_stage(FilterStage::Bytes),
            phash: config.hashes || filters.has_stage(FilterStage::Pixels),
        };
        // A perceptual hash is computed from the full-size image.
        let is_scaled = config.scaled_decode && !hashes.phash;
        let digests =
            Digests::new(config, (filter, &filters), source, caption, (hashes, is_scaled), seed, &*tokenizer);
        let mut selector = RowSelector::new(config, filters.clone(), hashes, seed);
        selector.has_captioner = captioner.is_some();
        Ok(Self {
            columns: InputColumns {
                columns: source.columns.clone(),
                carry: source.carry.clone(),
                scores: filter.score.keys().cloned().collect(),
                captions,
            },
            pixels: PixelWriter {
                filters,
                resample: config.resample,
                is_scaled,
                rendering: config.rendering(),
                scores: ComputedScores::default(),
                captioner,
            },
            selector,
            config: config.clone(),
            extra: ExtraColumns { hashes, captioner, ..ExtraColumns::default() },
            digests,
            tokenizer,
        })
    }

    /// This stage, which then also tokenises for the second text encoder and those after it.
    pub fn with_more_tokenizers(mut self, tokenizers: Vec<Arc<dyn CaptionTokenizer>>) -> Self {
        self.digests.add_tokenizers(&tokenizers);
        self.selector.text_encoders = 1 + tokenizers.len();
        self.extra.more_tokenizers = tokenizers;
        self
    }

    /// This stage, which then also prepares what these scores are computed from, and rejects rows by
    /// scores that an earlier run computed. Images must not be decoded at a scale.
    pub fn with_scores(mut self, scores: ComputedScores) -> Self {
        self.digests.add_scores(&scores);
        self.pixels.scores = scores.clone();
        self.extra.scores = scores.clone();
        self.selector.scores = scores;
        self
    }

    /// This stage, which then also rejects these samples with the given reasons, even if all
    /// filters pass them. [`digests`](Self::digests) do not depend on them.
    pub fn excluding(mut self, samples: HashMap<u64, &'static str>) -> Self {
        self.selector.excluded = samples;
        self
    }

    /// The schema of the output of [`run`](Self::run) for batches with the input schema. Carried
    /// columns keep the types of the source.
    ///
    /// # Errors
    /// If a carried column is missing.
    pub fn schema(&self, input: &Schema) -> Result<SchemaRef> {
        let InputColumns { carry, captions, .. } = &self.columns;
        output_schema(input, carry, &self.config, &self.extra, captions.has_several_sources(input))
    }

    /// Digests of everything that shapes the output.
    pub fn digests(&self) -> &Digests {
        &self.digests
    }

    /// Prepares a batch on the threads of the current rayon pool.
    ///
    /// The batch has the source's columns, and `sample_id` and `source_row` if the reader added
    /// them. Without them, rows are numbered from 0, and the id is derived from key and row. Image
    /// bytes are not copied. Pixels and tokens that the column
    /// [`known`](crate::prepare::known_results) makes unnecessary are not computed; they are null.
    ///
    /// # Errors
    /// If a column is missing or has a wrong type. An error in one row never fails the batch.
    pub fn run(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let input = Input::new(batch, &self.columns)?;
        let mut rows = self.selector.select_rows(batch, &input)?;
        // The kept rows and the sizes of their pixels are known, so pixels are decoded directly
        // into the output.
        let mut output = Output::new(&self.config, &self.extra, &rows);
        let slots = output.pixel_slots();
        rows.par_iter_mut().zip(slots).for_each(|(row, slots)| self.pixels.decode_row(row, slots));
        output.finish(&rows, &input, &*self.tokenizer, self.schema(batch.schema_ref())?)
    }

    /// True if images are needed to prepare a batch that was read without them; false if the column
    /// [`known`](crate::prepare::known_results) is sufficient for all rows.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub fn needs_images(&self, batch: &RecordBatch) -> Result<bool> {
        let input = Input::new(batch, &self.columns)?;
        let rows = self.selector.select_rows(batch, &input)?;
        let needs_image = |row: &Row| match &row.outcome {
            Outcome::Kept(plan) => plan.needs_image(),
            Outcome::Quarantined(error) => *error == RowError::Missing("image"),
            Outcome::Rejected(_) => false,
        };
        Ok(rows.iter().any(needs_image))
    }

    /// The output for a batch whose rows are all unreadable for a reason, `kind: detail`, that the
    /// caller gives.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub fn quarantine(&self, batch: &RecordBatch, reason: &str) -> Result<RecordBatch> {
        let input = Input::new(batch, &self.columns)?;
        let quarantined = |_| Row::quarantined(RowError::Other(reason.to_owned()));
        let rows: Vec<Row> = (0..batch.num_rows()).map(quarantined).collect();
        let output = Output::new(&self.config, &self.extra, &rows);
        output.finish(&rows, &input, &*self.tokenizer, self.schema(batch.schema_ref())?)
    }

    /// Most bytes of an output row without carried columns; very long texts may take more.
    pub fn row_bytes(&self) -> u64 {
        let pixels = |sizes: &Vec<(u32, u32)>| {
            sizes.iter().map(|&(width, height)| 3 * u64::from(width) * u64::from(height)).max().unwrap_or(0)
        };
        let ExtraColumns { scores, captioner, .. } = &self.extra;
        let views = scores.pixel_bytes() + captioner.map_or(0, CaptionerView::pixel_bytes);
        TEXT_BYTES + views as u64 + self.selector.sizes.iter().map(pixels).sum::<u64>()
    }

    /// Bytes of the carried columns of a batch. Of a sliced batch, only the slice counts where
    /// Arrow can tell.
    pub fn carried_bytes(&self, batch: &RecordBatch) -> u64 {
        let columns = self.columns.carry.iter().filter_map(|name| batch.column_by_name(name));
        let bytes = |column: &ArrayRef| {
            column.to_data().get_slice_memory_size().unwrap_or_else(|_| column.get_array_memory_size())
        };
        columns.map(|column| bytes(column) as u64).sum()
    }
}
