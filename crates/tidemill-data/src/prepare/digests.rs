//! Digests of everything that shapes the output of the stage.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use crate::caption::config::CaptionConfig;
use crate::caption::stage::digest_input;
use crate::filter::config::FilterConfig;
use crate::filter::filters::Filters;
use crate::prepare::computed_scores::{ComputedScore, ComputedScores};
use crate::prepare::config::PrepareConfig;
use crate::prepare::image_hashes::HashColumns;
use crate::prepare::known_results::EMBEDDING;
use crate::source::config::SourceConfig;
use crate::tokenizer::CaptionTokenizer;

/// The version of the pixels. It must be raised whenever the same configuration would give other
/// pixels than before.
const IMAGE_VERSION: u32 = 2;

/// The version of the pixels of images that are decoded at a scale. It must also be raised when
/// rows become readable that were not before.
const SCALED_VERSION: u32 = 3;

/// Digests (BLAKE3, hex) of what shapes each group of output columns, so that after a change only
/// the columns that it affects are computed again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Digests {
    /// Which rows are kept, and the carried columns: columns, captions, filters, the content of
    /// their lists, hashes, and how files are parsed.
    pub rows: String,
    /// `pixels_R`, `size_R` and `crop_R` by resolution R, and `flipped`: the image column, the
    /// section `[prepare]` (other resolutions only if images are decoded at a scale), the seed if
    /// anything is random, the code's version.
    pub images: BTreeMap<u32, String>,
    /// `token_ids`: the caption columns, `[caption]`, the seed if anything is random, and the
    /// tokenizer.
    pub text: String,
    /// `token_ids_2` and those after it: what `text` depends on, and the tokenizer.
    pub more_text: Vec<String>,
    /// Computed scores, by their names: the image column, how images are decoded, the network, and for
    /// scores that depend on the caption what `text` depends on.
    pub scores: BTreeMap<String, String>,
    /// What decoded images depend on, whatever is done with them.
    decoded_images: String,
}

impl Digests {
    /// Computes the digests of a configuration.
    pub(super) fn new(
        prepare: &PrepareConfig,
        (filter, filters): (&FilterConfig, &Filters),
        source: &SourceConfig,
        caption: &CaptionConfig,
        (hashes, is_scaled): (HashColumns, bool),
        seed: u64,
        tokenizer: &dyn CaptionTokenizer,
    ) -> Self {
        let (columns, resolutions) = (&source.columns, &prepare.resolutions);
        let text = digest_input(caption, &columns.caption, seed);
        // A captioner's captions also depend on the image.
        let seen = caption
            .captioner_side()
            .map(|_| (&columns.image, prepare.icc, prepare.background, IMAGE_VERSION));
        let text = match &seen {
            Some(seen) => serde_json::json!((text, seen)),
            None => text,
        };
        let rules = (filter.without_lists(), filters.list_digests(), hashes);
        let sizes: Vec<_> = resolutions.iter().map(|&resolution| prepare.sizes(resolution)).collect();
        let parsing = source_parsing(source);
        let digest = |digest: String| match &parsing {
            Some(parsing) => digest_json(&(digest, parsing)),
            None => digest,
        };
        let image = |r: &u32| (*r, digest(digest_images(&columns.image, prepare, *r, is_scaled, seed)));
        Self {
            rows: digest(digest_json(&(columns, &source.carry, &text, rules, resolutions, &sizes))),
            images: resolutions.iter().map(image).collect(),
            text: digest(digest_json(&(&text, tokenizer.digest()))),
            more_text: Vec::new(),
            scores: BTreeMap::new(),
            decoded_images: digest(digest_json(&(&columns.image, prepare.icc, prepare.background))),
        }
    }

    /// Adds the tokenizers of further text encoders.
    pub(super) fn add_tokenizers(&mut self, tokenizers: &[Arc<dyn CaptionTokenizer>]) {
        let digest = |tokenizer: &Arc<dyn CaptionTokenizer>| digest_json(&(&self.text, tokenizer.digest()));
        self.more_text = tokenizers.iter().map(digest).collect();
    }

    /// Adds what the computed scores change. Rows depend on their bounds.
    pub(super) fn add_scores(&mut self, scores: &ComputedScores) {
        let digest = |network: &str, uses_caption: bool| {
            digest_json(&(&self.decoded_images, network, uses_caption.then_some(&self.text), IMAGE_VERSION))
        };
        let digest_score =
            |score: &ComputedScore| (score.name.clone(), digest(&score.digest, score.uses_caption));
        let embedding =
            scores.embedding().map(|column| (EMBEDDING.to_owned(), digest(&column.digest, false)));
        let digests: BTreeMap<String, String> =
            scores.scores().iter().map(digest_score).chain(embedding).collect();
        let bounds: Vec<_> = scores.scores().iter().map(|score| score.bounds).collect();
        self.rows = digest_json(&(&self.rows, &digests, bounds));
        self.scores = digests;
    }
}

/// How the source's files become rows; `None` with the defaults, so that digests from before there
/// were such settings stay the same.
fn source_parsing(source: &SourceConfig) -> Option<impl Serialize> {
    let parsing = (&source.image_root, source.key_split, &source.csv);
    let default = SourceConfig::default();
    (parsing != (&default.image_root, default.key_split, &default.csv)).then_some(parsing)
}

/// Digest of what shapes the pixels at one resolution. Other resolutions matter only if images are
/// decoded at a scale, because the scale must suffice for all of them. Hashes do not matter.
fn digest_images(
    column: &str,
    config: &PrepareConfig,
    resolution: u32,
    is_scaled: bool,
    seed: u64,
) -> String {
    let mut resolutions = if is_scaled { config.resolutions.clone() } else { vec![resolution] };
    resolutions.sort_unstable();
    let mut buckets = config.buckets.clone();
    buckets.retain(|listed, _| resolutions.iter().any(|resolution| resolution.to_string() == *listed));
    let relevant =
        PrepareConfig { resolutions, buckets, scaled_decode: is_scaled, hashes: false, ..config.clone() };
    let version = if is_scaled { SCALED_VERSION } else { IMAGE_VERSION };
    digest_json(&(column, relevant.digest_input(), config.uses_seed().then_some(seed), version))
}

/// Digest of a value's JSON. Configurations contain ordered maps only, so the JSON is canonical.
fn digest_json(value: &impl Serialize) -> String {
    let json = serde_json::json!(value).to_string();
    blake3::hash(json.as_bytes()).to_hex().to_string()
}
