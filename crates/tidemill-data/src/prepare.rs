//! The CPU stage: record batches of encoded images and captions in, pixels and token ids out, one output row per
//! input row whatever became of it. ARCHITECTURE.md lists the output's columns.

mod bucket;
mod config;
mod crop;
mod input;
mod output;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Schema, SchemaRef};
use rayon::prelude::*;
use serde::Serialize;

pub use self::config::{Crop, PrepareConfig, Resample};
use self::crop::{Cut, mirror};
use self::input::Input;
use self::output::{Output, output_schema};
use crate::caption::config::CaptionConfig;
use crate::caption::{self, CaptionStage};
use crate::config::{Columns, FilterConfig, SourceConfig};
use crate::decode::{self, Info, Rgb8, Scale};
use crate::draw::{Purpose, draw};
use crate::error::{Result, RowError};
use crate::filter::{Facts, Filter, filters, first_refusal};
use crate::resize;
use crate::tokenizer::ClipTokenizer;

/// Raised whenever the same configuration would give other pixels than before.
const IMAGE_VERSION: u32 = 2;

/// Bytes of a row's output without its pixels: 77 token ids, key, caption and what is carried along.
const TEXT_BYTES: u64 = 2048;

/// Digests (BLAKE3, hex) of what shapes each group of output columns, so that a change redoes only that group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Digests {
    /// Which rows are kept and what is carried along: columns, captions and filters.
    pub rows: String,
    /// `pixels_R`, `size_R` and `crop_R`, by resolution R, and `flipped`: image column, the section `[prepare]`, the
    /// seed if anything is drawn, version of the code.
    pub images: BTreeMap<u32, String>,
    /// `token_ids`: caption columns, `[caption]`, the seed if it decides anything, and the tokenizer.
    pub text: String,
}

/// Decode, filter, crop, resize, tokenise. One value serves any number of threads.
pub struct Prepare {
    config: PrepareConfig,
    seed: u64,
    /// For each resolution the sizes that images can have.
    sizes: Vec<Vec<(u32, u32)>>,
    columns: Columns,
    carry: Vec<String>,
    scores: Vec<String>,
    filters: Vec<Filter>,
    captions: CaptionStage,
    tokenizer: Arc<ClipTokenizer>,
    digests: Digests,
}

/// What became of a row.
enum Verdict<'a> {
    Kept(Plan<'a>),
    /// By the filter of this name.
    Rejected(String),
    Quarantined(RowError),
}

/// What is to become of a kept row's image.
struct Plan<'a> {
    image: &'a [u8],
    /// The image's width and height.
    size: (u32, u32),
    /// For each resolution the cut, unless the image is too small for it.
    cuts: Vec<Option<Cut>>,
    flipped: bool,
}

/// A row's verdict, and what the image's header says unless the row is quarantined.
struct Row<'a> {
    verdict: Verdict<'a>,
    info: Option<Info>,
}

/// The name of the rejection of images that are too small for every resolution.
const TOO_SMALL: &str = "resolution";

impl Prepare {
    /// Checks the configuration and makes the stage. Whatever is drawn at random follows from `seed` and the sample's
    /// id.
    ///
    /// # Errors
    /// [`crate::Error::Config`] naming the key.
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
        let columns = source.columns.clone();
        let captions = CaptionStage::new(caption, &columns, seed)?;
        let text = caption::identity(caption, &columns.caption, seed);
        let sizes: Vec<_> = config.resolutions.iter().map(|&resolution| config.sizes(resolution)).collect();
        let digests = Digests {
            rows: digest(&(&columns, &source.carry, &text, filter, &config.resolutions, &sizes)),
            images: config
                .resolutions
                .iter()
                .map(|r| (*r, image_digest(&columns.image, config, *r, seed)))
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
            filters: filters(filter),
            captions,
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
        output_schema(input, &self.carry, &self.config, self.captions.has_choice(input))
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
        let input = Input::new(batch, &self.columns, &self.carry, &self.scores, &self.captions)?;
        let mut rows: Vec<Row> =
            (0..batch.num_rows()).into_par_iter().map(|row| self.judge(&input, row)).collect();
        // What is kept is known, and so is the size of its pixels: they are decoded straight to their places.
        let mut output = Output::new(&self.config, &rows);
        rows.par_iter_mut().zip(output.slots()).for_each(|(row, slots)| self.decode(row, slots));
        output.finish(&rows, &input, &self.tokenizer, self.schema(batch.schema_ref())?)
    }

    /// What [`run`](Self::run) gives for rows that are all unreadable for a reason, `kind: detail`, that only the caller
    /// knows.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn quarantine(&self, batch: &RecordBatch, reason: &str) -> Result<RecordBatch> {
        let input = Input::new(batch, &self.columns, &self.carry, &self.scores, &self.captions)?;
        let bad = |_| Row::quarantined(RowError::Other(reason.to_owned()));
        let rows: Vec<Row> = (0..batch.num_rows()).map(bad).collect();
        let output = Output::new(&self.config, &rows);
        output.finish(&rows, &input, &self.tokenizer, self.schema(batch.schema_ref())?)
    }

    /// Bytes of a row of the output, at most for all but the longest texts.
    pub fn row_bytes(&self) -> u64 {
        let pixels = |sizes: &Vec<(u32, u32)>| {
            sizes.iter().map(|&(width, height)| 3 * u64::from(width) * u64::from(height)).max().unwrap_or(0)
        };
        TEXT_BYTES + self.sizes.iter().map(pixels).sum::<u64>()
    }

    fn judge<'a>(&self, input: &'a Input, row: usize) -> Row<'a> {
        self.plan(input, row).unwrap_or_else(Row::quarantined)
    }

    /// Filters see the size in the header, so that only rows that pass are decoded.
    fn plan<'a>(&self, input: &'a Input, row: usize) -> Result<Row<'a>, RowError> {
        let pair = input.pair(row)?;
        let info = decode::probe(pair.image)?;
        let Info { width, height, .. } = info;
        let facts = Facts { width, height, caption: pair.caption, scores: &pair.scores };
        if let Some(filter) = first_refusal(&self.filters, &facts) {
            return Ok(Row { verdict: Verdict::Rejected(filter.name.clone()), info: Some(info) });
        }
        let sample_id = input.ids.value(row);
        let cuts: Vec<_> = self.cuts(sample_id, (width, height)).collect();
        if cuts.iter().all(Option::is_none) {
            return Ok(Row { verdict: Verdict::Rejected(TOO_SMALL.to_owned()), info: Some(info) });
        }
        let flipped = self.config.flip && draw(self.seed, sample_id, Purpose::Flip, 0) >> 63 == 1;
        Ok(Row {
            verdict: Verdict::Kept(Plan { image: pair.image, size: (width, height), cuts, flipped }),
            info: Some(info),
        })
    }

    /// The image's cut at each resolution.
    fn cuts(&self, sample_id: u64, image: (u32, u32)) -> impl Iterator<Item = Option<Cut>> {
        self.config.resolutions.iter().zip(&self.sizes).map(move |(&resolution, sizes)| {
            let random = self.config.crop == Crop::Random;
            let place = random.then(|| draw(self.seed, sample_id, Purpose::Crop, resolution));
            Cut::new(image, sizes, place)
        })
    }

    /// Writes a kept row's pixels to its places, or quarantines it if they are damaged.
    fn decode(&self, row: &mut Row, slots: Vec<&mut [u8]>) {
        if let Verdict::Kept(plan) = &row.verdict
            && let Err(error) = self.write_pixels(plan, slots)
        {
            *row = Row::quarantined(error);
        }
    }

    fn write_pixels(&self, plan: &Plan, slots: Vec<&mut [u8]>) -> Result<(), RowError> {
        let image = self.decode_image(plan)?;
        let size = (image.width, image.height);
        for (cut, planes) in plan.cuts.iter().zip(slots) {
            if let Some(cut) = cut {
                let area = cut.crop.scaled(plan.size, size);
                let mut resized = resize::resize(&image, area, cut.size, self.config.resample)?;
                if plan.flipped {
                    mirror(&mut resized);
                }
                resize::to_planes(&resized, planes);
            }
        }
        Ok(())
    }

    /// Decodes the image, at a smaller size if that is wanted and enough for what the cuts become.
    fn decode_image(&self, plan: &Plan) -> Result<Rgb8, RowError> {
        if !self.config.scaled_decode {
            return decode::decode(plan.image);
        }
        let cuts = plan.cuts.iter().flatten();
        let lengths = cuts.flat_map(|cut| [(cut.crop.width, cut.size.0), (cut.crop.height, cut.size.1)]);
        decode::decode_scaled(plan.image, Scale::reaching(lengths))
    }
}

impl Row<'_> {
    fn quarantined(error: RowError) -> Self {
        Self { verdict: Verdict::Quarantined(error), info: None }
    }

    fn plan(&self) -> Option<&Plan<'_>> {
        match &self.verdict {
            Verdict::Kept(plan) => Some(plan),
            _ => None,
        }
    }
}

/// Of what shapes the pixels at one resolution; the other resolutions do not.
fn image_digest(column: &str, config: &PrepareConfig, resolution: u32, seed: u64) -> String {
    let alone = PrepareConfig { resolutions: vec![resolution], ..config.clone() };
    digest(&(column, alone, config.draws().then_some(seed), IMAGE_VERSION))
}

/// Configurations hold only ordered maps, so that their JSON is canonical.
fn digest(value: &impl Serialize) -> String {
    let json = serde_json::json!(value).to_string();
    blake3::hash(json.as_bytes()).to_hex().to_string()
}
