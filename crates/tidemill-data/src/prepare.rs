//! The CPU stage: record batches of encoded images and captions in, pixels and token ids out, one output row per
//! input row whatever became of it. ARCHITECTURE.md lists the output's columns.

mod input;
mod output;
mod parts;

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Schema, SchemaRef};
use rayon::prelude::*;
use serde::Serialize;

use self::input::Input;
use self::output::{Output, output_schema};
pub use self::parts::Parts;
use crate::config::{Columns, FilterConfig, PrepareConfig, SourceConfig};
use crate::decode;
use crate::error::{Result, RowError};
use crate::filter::{Facts, Filter, filters, first_refusal};
use crate::resize;
use crate::tokenizer::ClipTokenizer;

/// Raised whenever the same configuration would give other pixels than before.
const IMAGE_VERSION: u32 = 1;

/// Digests (BLAKE3, hex) of what shapes each group of output columns, so that a change redoes only that group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Digests {
    /// Which rows are kept and what is carried along: columns and filters.
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
    filters: Vec<Filter>,
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

/// A row's verdict, and the image's width and height unless it is quarantined.
struct Row {
    verdict: Verdict,
    size: Option<(u32, u32)>,
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
        let columns = source.columns.clone();
        let digests = Digests {
            rows: digest(&(&columns, &source.carry, filter, &config.resolutions)),
            images: digest(&(&columns.image, config, IMAGE_VERSION)),
            text: digest(&(&columns.caption, tokenizer.digest())),
        };
        Ok(Self {
            config: config.clone(),
            columns,
            carry: source.carry.clone(),
            scores: filter.score.keys().cloned().collect(),
            filters: filters(filter, &config.resolutions),
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
        output_schema(input, &self.carry, &self.config.resolutions)
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
        let mut output = Output::new(&self.config, batch.num_rows());
        let rows = output
            .slots()
            .into_par_iter()
            .enumerate()
            .map(|(row, mut slots)| self.prepare_row(&input, row, &mut slots))
            .collect();
        output.finish(rows, input, &self.tokenizer, self.schema(batch.schema_ref())?)
    }

    fn prepare_row(&self, input: &Input, row: usize, slots: &mut [&mut [u8]]) -> Row {
        match self.judge(input, row, slots) {
            Ok(row) => row,
            Err(error) => Row { verdict: Verdict::Quarantined(error), size: None },
        }
    }

    /// Filters see the size in the header, so that only rows that pass are decoded.
    fn judge(&self, input: &Input, row: usize, slots: &mut [&mut [u8]]) -> Result<Row, RowError> {
        let pair = input.pair(row)?;
        let (width, height) = decode::probe(pair.image)?;
        let size = Some((width, height));
        let facts = Facts { width, height, caption: pair.caption, scores: &pair.scores };
        if let Some(filter) = first_refusal(&self.filters, &facts) {
            return Ok(Row { verdict: Verdict::Rejected(filter.name.clone()), size });
        }
        let image = decode::decode(pair.image)?;
        let crop = resize::crop(self.config.crop, width, height);
        for (&side, planes) in self.config.resolutions.iter().zip(slots) {
            if side <= width.min(height) {
                let square = resize::resize(&image, crop, side, self.config.resample)?;
                resize::to_planes(&square, planes);
            }
        }
        Ok(Row { verdict: Verdict::Kept, size })
    }
}

/// Configurations hold only ordered maps, so that their JSON is canonical.
fn digest(value: &impl Serialize) -> String {
    let json = serde_json::json!(value).to_string();
    blake3::hash(json.as_bytes()).to_hex().to_string()
}
