//! The CPU stage: record batches of encoded images and captions in, pixels and token ids out, one output row per
//! input row whatever became of it. ARCHITECTURE.md lists the output's columns.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::datatypes::{Schema, SchemaRef};
use rayon::prelude::*;
use serde::Serialize;

use crate::caption::config::CaptionConfig;
use crate::caption::stage::{CaptionStage, digest_input};
use crate::error::{Result, RowError};
use crate::filter::config::FilterConfig;
use crate::filter::filters::Filters;
use crate::filter::rule::FilterStage;
use crate::prepare::config::PrepareConfig;
use crate::prepare::image_hashes::Wanted;
use crate::prepare::input::Input;
use crate::prepare::output::{Output, output_schema};
use crate::prepare::row::{Row, Verdict};
use crate::source::config::{Columns, SourceConfig};
use crate::tokenizer::ClipTokenizer;

/// Raised whenever the same configuration would give other pixels than before.
const IMAGE_VERSION: u32 = 2;

/// The same where images are decoded at a scale: raised also when rows can be read that could not before.
const SCALED_VERSION: u32 = 3;

/// Bytes of a row's output without its pixels and what is carried along: 77 token ids, key, caption and small columns.
const TEXT_BYTES: u64 = 2048;

/// Digests (BLAKE3, hex) of what shapes each group of output columns, so that a change redoes only that group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Digests {
    /// Which rows are kept and what is carried along: columns, captions, filters, what their lists hold, hashes.
    pub rows: String,
    /// `pixels_R`, `size_R` and `crop_R`, by resolution R, and `flipped`: image column, the section `[prepare]` (the
    /// other resolutions only if images are decoded at a scale), the seed if anything is drawn, version of the code.
    pub images: BTreeMap<u32, String>,
    /// `token_ids`: caption columns, `[caption]`, the seed if it decides anything, and the tokenizer.
    pub text: String,
}

/// Decode, filter, crop, resize, tokenise. One value serves any number of threads.
pub struct Prepare {
    pub(crate) config: PrepareConfig,
    pub(crate) seed: u64,
    /// For each resolution the sizes that images can have.
    pub(crate) sizes: Vec<Vec<(u32, u32)>>,
    pub(crate) columns: Columns,
    pub(crate) carry: Vec<String>,
    pub(crate) scores: Vec<String>,
    pub(crate) filters: Filters,
    pub(crate) hashes: Wanted,
    /// Whether JPEGs may be decoded at less than their size. A perceptual hash is one of the whole picture.
    pub(crate) scaled: bool,
    pub(crate) captions: CaptionStage,
    pub(crate) tokenizer: Arc<ClipTokenizer>,
    pub(crate) digests: Digests,
    /// Why rows are left out that all filters let pass, by sample id.
    pub(crate) left_out: HashMap<u64, &'static str>,
}

impl Prepare {
    /// Checks the configuration and makes the stage. Whatever is drawn at random follows from `seed` and the sample's
    /// id.
    ///
    /// # Errors
    /// [`crate::Error::Config`] naming the key; a list of a filter that cannot be read.
    pub fn new(
        config: &PrepareConfig,
        filter: &FilterConfig,
        source: &SourceConfig,
        caption: &CaptionConfig,
        seed: u64,
        tokenizer: Arc<ClipTokenizer>,
    ) -> Result<Self> {
        config.validate()?;
        filter.validate()?;
        source.validate_columns()?;
        filter.validate_source(source)?;
        let columns = source.columns.clone();
        let captions = CaptionStage::new(caption, &columns, seed)?;
        let filters = Filters::new(filter)?;
        let hashes = Wanted {
            sha256: config.hashes || filters.has_stage(FilterStage::Bytes),
            phash: config.hashes || filters.has_stage(FilterStage::Pixels),
        };
        let scaled = config.scaled_decode && !hashes.phash;
        let sizes: Vec<_> = config.resolutions.iter().map(|&resolution| config.sizes(resolution)).collect();
        let text = digest_input(caption, &columns.caption, seed);
        let rules = (filter.without_lists(), filters.list_digests(), hashes);
        let digests = Digests {
            rows: digest(&(&columns, &source.carry, &text, rules, &config.resolutions, &sizes)),
            images: config
                .resolutions
                .iter()
                .map(|r| (*r, image_digest(&columns.image, config, *r, scaled, seed)))
                .collect(),
            text: digest(&(&text, tokenizer.digest())),
        };
        Ok(Self {
            config: config.clone(),
            seed,
            sizes,
            columns,
            carry: source.carry.clone(),
            scores: filter.score.keys().cloned().collect(),
            filters,
            hashes,
            scaled,
            captions,
            tokenizer,
            digests,
            left_out: HashMap::new(),
        })
    }

    /// The same stage, which refuses these samples for the reasons given even if all filters let them pass. What they are
    /// is not part of [`digests`](Self::digests).
    pub fn leaving_out(self, samples: HashMap<u64, &'static str>) -> Self {
        Self { left_out: samples, ..self }
    }

    /// The schema that [`run`](Self::run) gives for batches of the input schema: the types of the carried columns are
    /// the source's.
    ///
    /// # Errors
    /// If a carried column is missing.
    pub fn schema(&self, input: &Schema) -> Result<SchemaRef> {
        output_schema(input, &self.carry, &self.config, self.hashes, self.captions.has_several_sources(input))
    }

    /// Digests of everything that shapes the output.
    pub fn digests(&self) -> &Digests {
        &self.digests
    }

    /// Prepares a batch on the threads of the current rayon pool. The batch holds the source's columns, and
    /// `sample_id` and `source_row` if the reader added them; without them rows are numbered from 0 and the id is
    /// derived from key and row. Image bytes are read where they lie. What a column [`known`](self::known) says of a
    /// row is not worked out again: its pixels and tokens are null.
    ///
    /// # Errors
    /// If a column is missing or has a wrong type. What is wrong with one row never fails the batch.
    pub fn run(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let input = self.input(batch)?;
        let mut rows = self.judge_all(batch, &input)?;
        // What is kept is known, and so is the size of its pixels: they are decoded straight to their places.
        let mut output = Output::new(&self.config, self.hashes, &rows);
        rows.par_iter_mut().zip(output.slots()).for_each(|(row, slots)| self.decode(row, slots));
        output.finish(&rows, &input, &self.tokenizer, self.schema(batch.schema_ref())?)
    }

    /// Whether images are needed to prepare a batch that was read without them, or what the column
    /// [`known`](self::known) says of its rows is enough.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn needs_images(&self, batch: &RecordBatch) -> Result<bool> {
        let input = self.input(batch)?;
        let rows = self.judge_all(batch, &input)?;
        let missing = |row: &Row| match &row.verdict {
            Verdict::Kept(plan) => plan.needs_image(),
            Verdict::Quarantined(error) => *error == RowError::Missing("image"),
            Verdict::Rejected(_) => false,
        };
        Ok(rows.iter().any(missing))
    }

    /// What [`run`](Self::run) gives for rows that are all unreadable for a reason, `kind: detail`, that only the caller
    /// knows.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn quarantine(&self, batch: &RecordBatch, reason: &str) -> Result<RecordBatch> {
        let input = self.input(batch)?;
        let bad = |_| Row::quarantined(RowError::Other(reason.to_owned()));
        let rows: Vec<Row> = (0..batch.num_rows()).map(bad).collect();
        let output = Output::new(&self.config, self.hashes, &rows);
        output.finish(&rows, &input, &self.tokenizer, self.schema(batch.schema_ref())?)
    }

    /// Bytes of a row of the output without the columns carried along, at most for all but the longest texts.
    pub fn row_bytes(&self) -> u64 {
        let pixels = |sizes: &Vec<(u32, u32)>| {
            sizes.iter().map(|&(width, height)| 3 * u64::from(width) * u64::from(height)).max().unwrap_or(0)
        };
        TEXT_BYTES + self.sizes.iter().map(pixels).sum::<u64>()
    }

    /// Bytes of a batch's columns that are carried along.
    pub fn carried_bytes(&self, batch: &RecordBatch) -> u64 {
        let columns = self.carry.iter().filter_map(|name| batch.column_by_name(name));
        // Of a slice, as far as that can be told.
        let bytes = |column: &ArrayRef| {
            column.to_data().get_slice_memory_size().unwrap_or_else(|_| column.get_array_memory_size())
        };
        columns.map(|column| bytes(column) as u64).sum()
    }

    pub(crate) fn input<'a>(&self, batch: &'a RecordBatch) -> Result<Input<'a>> {
        Input::new(batch, &self.columns, &self.carry, &self.scores, &self.captions)
    }

    pub(crate) fn judge_all<'a>(&self, batch: &RecordBatch, input: &'a Input) -> Result<Vec<Row<'a>>> {
        let selection = self.filters.evaluate_where(batch)?;
        let judge = |row| self.judge(input, &selection, row).unwrap_or_else(Row::quarantined);
        Ok((0..batch.num_rows()).into_par_iter().map(judge).collect())
    }
}

/// Of what shapes the pixels at one resolution. The other resolutions do only if images are decoded at a scale, which
/// has to suffice for all of them; hashes do not.
fn image_digest(column: &str, config: &PrepareConfig, resolution: u32, scaled: bool, seed: u64) -> String {
    let mut resolutions = if scaled { config.resolutions.clone() } else { vec![resolution] };
    resolutions.sort_unstable();
    let mut buckets = config.buckets.clone();
    buckets.retain(|listed, _| resolutions.iter().any(|resolution| resolution.to_string() == *listed));
    let alone =
        PrepareConfig { resolutions, buckets, scaled_decode: scaled, hashes: false, ..config.clone() };
    let version = if scaled { SCALED_VERSION } else { IMAGE_VERSION };
    digest(&(column, alone, config.uses_seed().then_some(seed), version))
}

/// Configurations hold only ordered maps, so that their JSON is canonical.
fn digest(value: &impl Serialize) -> String {
    let json = serde_json::json!(value).to_string();
    blake3::hash(json.as_bytes()).to_hex().to_string()
}
