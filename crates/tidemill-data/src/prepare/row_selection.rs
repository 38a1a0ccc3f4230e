//! Decides which rows are kept. Each filter decides as soon as what it looks at is known, so that
//! only rows that pass the earlier filters are hashed and decoded.

use std::collections::HashMap;

use arrow::array::RecordBatch;
use rayon::prelude::*;

use crate::decode;
use crate::error::{Result, RowError};
use crate::filter::filters::{CONDITION, Filters, Selection};
use crate::filter::rule::{FilterStage, RowFacts};
use crate::prepare::computed_scores::ComputedScores;
use crate::prepare::config::{Crop, PrepareConfig};
use crate::prepare::crop::ResizedCrop;
use crate::prepare::image_hashes::{HashColumns, ImageHashes, compute_sha256};
use crate::prepare::input::Input;
use crate::prepare::row::{Outcome, Plan, Row};
use crate::random::{Purpose, draw};

/// The reason of images that are too small for every resolution.
const TOO_SMALL: &str = "resolution";

/// Selects the rows of a batch by everything that does not need their pixels.
pub struct RowSelector {
    /// For each resolution the sizes, width and height, that images can have.
    pub sizes: Vec<Vec<(u32, u32)>>,
    /// The scores that are computed of kept rows.
    pub scores: ComputedScores,
    /// True if captions are made by a captioner.
    pub has_captioner: bool,
    /// Number of text encoders that captions are tokenised for.
    pub text_encoders: usize,
    /// Reasons of samples that are rejected although all filters pass them, by sample id.
    pub excluded: HashMap<u64, &'static str>,
    resolutions: Vec<u32>,
    crop: Crop,
    flip: bool,
    seed: u64,
    filters: Filters,
    hashes: HashColumns,
}

impl RowSelector {
    /// A selector that excludes no samples.
    pub fn new(config: &PrepareConfig, filters: Filters, hashes: HashColumns, seed: u64) -> Self {
        Self {
            sizes: config.resolutions.iter().map(|&resolution| config.sizes(resolution)).collect(),
            scores: ComputedScores::default(),
            has_captioner: false,
            text_encoders: 1,
            excluded: HashMap::new(),
            resolutions: config.resolutions.clone(),
            crop: config.crop,
            flip: config.flip,
            seed,
            filters,
            hashes,
        }
    }

    /// Decides on all rows of a batch, on the threads of the current rayon pool.
    ///
    /// # Errors
    /// If the expression in `filter.where` cannot be evaluated.
    pub fn select_rows<'a>(&self, batch: &RecordBatch, input: &'a Input) -> Result<Vec<Row<'a>>> {
        let selection = self.filters.evaluate_where(batch)?;
        let select = |row| match self.select_row(input, &selection, row) {
            // img2dataset lists images that it could not get, too; its `status` tells them apart.
            Err(RowError::Missing(_)) if !selection.includes(row) => Row::rejected(CONDITION),
            selected => selected.unwrap_or_else(Row::quarantined),
        };
        Ok((0..batch.num_rows()).into_par_iter().map(select).collect())
    }

    fn select_row<'a>(
        &self,
        input: &'a Input,
        selection: &Selection,
        row: usize,
    ) -> Result<Row<'a>, RowError> {
        let pair = input.pair(row)?;
        let scores = self.scores.known_values(input.known.as_ref(), row);
        let known = input.known.as_ref().map(|known| known.of_row(row)).unwrap_or_default();
        let unreadable = known.unreadable.map(|error| RowError::Other(error.to_owned()));
        let info = match (known.info, &unreadable) {
            (Some(info), _) => info,
            (None, Some(error)) => return Err(error.clone()),
            (None, None) => decode::probe(pair.image.clone()?)?,
        };
        let size = (info.width, info.height);
        let mut facts = RowFacts {
            key: pair.key,
            url: pair.url,
            width: info.width,
            height: info.height,
            caption: pair.caption,
            scores: &pair.scores,
            condition: selection.includes(row),
            sha256: None,
            phash: None,
        };
        let finish = |outcome, facts: &RowFacts| {
            let hashes = ImageHashes { sha256: facts.sha256, phash: facts.phash };
            Ok(Row { outcome, info: Some(info), hashes, scores: scores.clone() })
        };
        if let Some(rejected) = self.reject(FilterStage::Header, &facts) {
            return finish(rejected, &facts);
        }
        let sample_id = input.ids.value(row);
        let crops: Vec<_> = self.crops(sample_id, size).collect();
        if crops.iter().all(Option::is_none) {
            return finish(Outcome::Rejected(TOO_SMALL.to_owned()), &facts);
        }
        // Known hashes are used only where they would be computed, so that a later run rejects the
        // same rows.
        if self.hashes.sha256 {
            facts.sha256 = Some(match known.hashes.sha256 {
                Some(hash) => hash,
                None => compute_sha256(pair.image.clone()?),
            });
        }
        if let Some(rejected) = self.reject(FilterStage::Bytes, &facts) {
            return finish(rejected, &facts);
        }
        facts.phash = known.hashes.phash;
        if facts.phash.is_some()
            && let Some(rejected) = self.reject(FilterStage::Pixels, &facts)
        {
            return finish(rejected, &facts);
        }
        // The header was readable, but an earlier run found the pixels unreadable.
        if let Some(error) = unreadable {
            return finish(Outcome::Quarantined(error), &facts);
        }
        let needs_phash = self.hashes.phash && facts.phash.is_none();
        // Lists of hashes come first, as where scores are computed.
        if let Some(rejected) = self.scores.find_rejection(&scores).filter(|_| !needs_phash) {
            return finish(Outcome::Rejected(rejected), &facts);
        }
        if let Some(reason) = self.excluded.get(&sample_id) {
            return finish(Outcome::Rejected((*reason).to_owned()), &facts);
        }
        let plan = Plan {
            image: pair.image,
            size,
            crops,
            has_latents: self.resolutions.iter().map(|&r| known.has_latents(r)).collect(),
            is_flipped: self.flip && draw(self.seed, sample_id, Purpose::Flip, 0) >> 63 == 1,
            has_text: (0..self.text_encoders).map(|encoder| known.has_text(encoder)).collect(),
            needs_phash,
            needs_caption: self.has_captioner && !known.has_text(0),
            needs_scores: self.scores.is_missing(&scores, input.known.as_ref(), row),
        };
        finish(Outcome::Kept(plan), &facts)
    }

    fn reject(&self, stage: FilterStage, facts: &RowFacts) -> Option<Outcome<'static>> {
        self.filters.find_rejection(stage, facts).map(|name| Outcome::Rejected(name.to_owned()))
    }

    /// The image's crop at each resolution.
    fn crops(&self, sample_id: u64, image: (u32, u32)) -> impl Iterator<Item = Option<ResizedCrop>> {
        self.resolutions.iter().zip(&self.sizes).map(move |(&resolution, sizes)| {
            let is_random = self.crop == Crop::Random;
            let number = is_random.then(|| draw(self.seed, sample_id, Purpose::Crop, resolution));
            ResizedCrop::new(image, sizes, number)
        })
    }
}
