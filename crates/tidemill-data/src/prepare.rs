//! The CPU stage: record batches of encoded images and captions in, pixels and token ids out, one output row per
//! input row whatever became of it. ARCHITECTURE.md lists the output's columns.

mod hashes;
mod input;
mod output;

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Schema, SchemaRef};
use rayon::prelude::*;
use serde::Serialize;

use self::hashes::{Hashes, Wanted, sha256};
use self::input::Input;
use self::output::{Output, output_schema};
use crate::config::{BlocklistConfig, Columns, FilterConfig, PrepareConfig, SourceConfig};
use crate::decode::{self, Rgb8};
use crate::error::{Result, RowError};
use crate::filter::{Facts, Filters, Selection, Stage};
use crate::phash::phash;
use crate::resize;
use crate::tokenizer::ClipTokenizer;

/// Raised whenever the same configuration would give other pixels than before.
const IMAGE_VERSION: u32 = 1;

/// Digests (BLAKE3, hex) of what shapes each group of output columns, so that a change redoes only that group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Digests {
    /// Which rows are kept and what is carried along: columns, filters, what their lists hold, hashes.
    pub rows: String,
    /// `pixels_R` and `crop_R`: image column, resolutions, crop, resampling, version of the code.
    pub images: String,
    /// `token_ids`: caption column and tokenizer.
    pub text: String,
}

/// Decode, filter, crop, resize, tokenise. One value serves any number of threads.
pub struct Prepare {
    config: PrepareConfig,
    columns: Columns,
    carry: Vec<String>,
    scores: Vec<String>,
    filters: Filters,
    hashes: Wanted,
    tokenizer: Arc<ClipTokenizer>,
    digests: Digests,
}

/// What became of a row.
enum Verdict {
    Kept,
    /// By the filter of this name.
    Rejected(String),
    Quarantined(RowError),
}

/// A row's verdict, and the image's width, height and hashes unless it is quarantined.
struct Row {
    verdict: Verdict,
    size: Option<(u32, u32)>,
    hashes: Hashes,
}

impl Prepare {
    /// Checks the configuration and makes the stage.
    ///
    /// # Errors
    /// [`crate::Error::Config`] naming the key.
    pub fn new(
        config: &PrepareConfig,
        filter: &FilterConfig,
        source: &SourceConfig,
        tokenizer: Arc<ClipTokenizer>,
    ) -> Result<Self> {
        config.validate()?;
        filter.validate()?;
        source.validate_columns()?;
        filter.validate_source(source)?;
        let columns = source.columns.clone();
        let filters = Filters::new(filter, &config.resolutions)?;
        let hashes = Wanted {
            sha256: config.hashes || filters.need(Stage::Bytes),
            phash: config.hashes || filters.need(Stage::Pixels),
        };
        // What the lists hold counts, not where they lie; and hashes change no pixels.
        let lists = BlocklistConfig::default;
        let rules = FilterConfig { blocklist: lists(), opt_out: lists(), ..filter.clone() };
        let pixels = PrepareConfig { hashes: false, ..config.clone() };
        let digests = Digests {
            rows: digest(&(&columns, &source.carry, rules, filters.lists(), hashes, &config.resolutions)),
            images: digest(&(&columns.image, pixels, IMAGE_VERSION)),
            text: digest(&(&columns.caption, tokenizer.digest())),
        };
        Ok(Self {
            config: config.clone(),
            columns,
            carry: source.carry.clone(),
            scores: filter.score.keys().cloned().collect(),
            filters,
            hashes,
            tokenizer,
            digests,
        })
    }

    /// The schema that [`run`](Self::run) gives for batches of the input schema: the types of the carried columns are
    /// the source's.
    ///
    /// # Errors
    /// If a carried column is missing.
    pub fn schema(&self, input: &Schema) -> Result<SchemaRef> {
        output_schema(input, &self.carry, self.hashes, &self.config.resolutions)
    }

    /// Digests of everything that shapes the output.
    pub fn digests(&self) -> &Digests {
        &self.digests
    }

    /// Prepares a batch on the threads of the current rayon pool. The batch holds the source's columns, and
    /// `sample_id` and `source_row` if the reader added them; without them rows are numbered from 0 and the id is
    /// derived from key and row. Image bytes are read where they lie.
    ///
    /// # Errors
    /// If a column is missing or has a wrong type. What is wrong with one row never fails the batch.
    pub fn run(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let input = Input::new(batch, &self.columns, &self.carry, &self.scores)?;
        let selection = self.filters.select(batch)?;
        let mut output = Output::new(&self.config, self.hashes, batch.num_rows());
        let rows = output
            .slots()
            .into_par_iter()
            .enumerate()
            .map(|(row, mut slots)| self.prepare_row(&input, &selection, row, &mut slots))
            .collect();
        output.finish(rows, input, &self.tokenizer, self.schema(batch.schema_ref())?)
    }

    fn prepare_row(&self, input: &Input, selection: &Selection, row: usize, slots: &mut [&mut [u8]]) -> Row {
        self.judge(input, selection, row, slots).unwrap_or_else(|error| Row {
            verdict: Verdict::Quarantined(error),
            size: None,
            hashes: Hashes::default(),
        })
    }

    fn judge(
        &self,
        input: &Input,
        selection: &Selection,
        row: usize,
        slots: &mut [&mut [u8]],
    ) -> Result<Row, RowError> {
        let pair = input.pair(row)?;
        let (width, height) = decode::probe(pair.image)?;
        let mut facts = Facts {
            key: pair.key,
            url: pair.url,
            width,
            height,
            caption: pair.caption,
            scores: &pair.scores,
            condition: selection.has(row),
            sha256: None,
            phash: None,
        };
        let verdict = match self.admit(pair.image, &mut facts) {
            Ok(image) => {
                self.fill(&image, slots)?;
                Verdict::Kept
            }
            Err(Verdict::Quarantined(error)) => return Err(error),
            Err(refused) => refused,
        };
        let hashes = Hashes { sha256: facts.sha256, phash: facts.phash };
        Ok(Row { verdict, size: Some((width, height)), hashes })
    }

    /// Decodes an image that all filters let pass. Each stage's filters see what is known by then, so that only rows that
    /// pass the ones before are hashed and decoded.
    fn admit(&self, bytes: &[u8], facts: &mut Facts) -> Result<Rgb8, Verdict> {
        self.filter(Stage::Header, facts)?;
        facts.sha256 = self.hashes.sha256.then(|| sha256(bytes));
        self.filter(Stage::Bytes, facts)?;
        let image = decode::decode(bytes)?;
        facts.phash = self.hashes.phash.then(|| phash(&image)).transpose()?;
        self.filter(Stage::Pixels, facts)?;
        Ok(image)
    }

    fn filter(&self, stage: Stage, facts: &Facts) -> Result<(), Verdict> {
        match self.filters.refusal(stage, facts) {
            Some(name) => Err(Verdict::Rejected(name.to_owned())),
            None => Ok(()),
        }
    }

    /// Writes the image's pixels at every resolution that it reaches.
    fn fill(&self, image: &Rgb8, slots: &mut [&mut [u8]]) -> Result<(), RowError> {
        let crop = resize::crop(self.config.crop, image.width, image.height);
        for (&side, planes) in self.config.resolutions.iter().zip(slots) {
            if side <= image.width.min(image.height) {
                let square = resize::resize(image, crop, side, self.config.resample)?;
                resize::to_planes(&square, planes);
            }
        }
        Ok(())
    }
}

impl From<RowError> for Verdict {
    fn from(error: RowError) -> Self {
        Self::Quarantined(error)
    }
}

/// Configurations hold only ordered maps, so that their JSON is canonical.
fn digest(value: &impl Serialize) -> String {
    let json = serde_json::json!(value).to_string();
    blake3::hash(json.as_bytes()).to_hex().to_string()
}
