//! What becomes of one row: the filters decide as soon as what they look at is there, so that only rows that pass the
//! ones before are hashed and decoded.

use crate::decode::{self, ImageInfo, Rgb8, Scale, Strip};
use crate::error::RowError;
use crate::filter::filters::Selection;
use crate::filter::rule::{FilterStage, RowFacts};
use crate::perceptual_hash::phash;
use crate::prepare::config::Crop;
use crate::prepare::crop::{Cut, mirror};
use crate::prepare::image_hashes::{Hashes, sha256};
use crate::prepare::input::Input;
use crate::prepare::stage::Prepare;
use crate::random::{Purpose, draw};
use crate::resize;

/// The name of the rejection of images that are too small for every resolution.
const TOO_SMALL: &str = "resolution";

/// A row's verdict, and what is known of its image.
pub struct Row<'a> {
    pub verdict: Verdict<'a>,
    pub info: Option<ImageInfo>,
    pub hashes: Hashes,
}

/// What became of a row.
pub enum Verdict<'a> {
    Kept(Plan<'a>),
    /// By the filter of this name.
    Rejected(String),
    Quarantined(RowError),
}

/// What is to become of a kept row's image and caption.
pub struct Plan<'a> {
    image: Result<&'a [u8], RowError>,
    /// The image's width and height.
    pub size: (u32, u32),
    /// For each resolution the cut, unless the image is too small for it.
    pub cuts: Vec<Option<Cut>>,
    /// For each resolution whether its latents are there already.
    pub encoded: Vec<bool>,
    pub flipped: bool,
    /// Whether the caption's embedding is there already.
    pub embedded: bool,
    /// Whether the perceptual hash has to be computed.
    hash: bool,
}

impl Plan<'_> {
    /// Whether anything is left to do with the image.
    pub fn needs_image(&self) -> bool {
        self.hash || (0..self.cuts.len()).any(|resolution| self.new_cut(resolution).is_some())
    }

    /// The cut at a resolution, given by its index, if there is one whose pixels are needed.
    pub fn new_cut(&self, resolution: usize) -> Option<&Cut> {
        self.cuts.get(resolution)?.as_ref().filter(|_| !self.encoded[resolution])
    }
}

impl Row<'_> {
    pub fn quarantined(error: RowError) -> Self {
        Self { verdict: Verdict::Quarantined(error), info: None, hashes: Hashes::default() }
    }

    pub fn plan(&self) -> Option<&Plan<'_>> {
        match &self.verdict {
            Verdict::Kept(plan) => Some(plan),
            _ => None,
        }
    }
}

impl Prepare {
    /// Decides on a row by everything that its pixels are not needed for.
    pub(crate) fn judge<'a>(
        &self,
        input: &'a Input,
        selection: &Selection,
        row: usize,
    ) -> Result<Row<'a>, RowError> {
        let pair = input.pair(row)?;
        let known = input.known.as_ref().map(|known| known.row(row)).unwrap_or_default();
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
        let verdict = |verdict, facts: &RowFacts| {
            let hashes = Hashes { sha256: facts.sha256, phash: facts.phash };
            Ok(Row { verdict, info: Some(info), hashes })
        };
        if let Some(refused) = self.refusal(FilterStage::Header, &facts) {
            return verdict(refused, &facts);
        }
        let sample_id = input.ids.value(row);
        let cuts: Vec<_> = self.cuts(sample_id, size).collect();
        if cuts.iter().all(Option::is_none) {
            return verdict(Verdict::Rejected(TOO_SMALL.to_owned()), &facts);
        }
        // What an earlier run knows comes no sooner than it would be found out, so that rows refused by then are the same.
        if self.hashes.sha256 {
            facts.sha256 = Some(match known.hashes.sha256 {
                Some(hash) => hash,
                None => sha256(pair.image.clone()?),
            });
        }
        if let Some(refused) = self.refusal(FilterStage::Bytes, &facts) {
            return verdict(refused, &facts);
        }
        facts.phash = known.hashes.phash;
        if facts.phash.is_some()
            && let Some(refused) = self.refusal(FilterStage::Pixels, &facts)
        {
            return verdict(refused, &facts);
        }
        // The header was readable, the pixels behind it were not.
        if let Some(error) = unreadable {
            return verdict(Verdict::Quarantined(error), &facts);
        }
        if let Some(reason) = self.left_out.get(&sample_id) {
            return verdict(Verdict::Rejected((*reason).to_owned()), &facts);
        }
        let encoded = self.config.resolutions.iter().map(|&r| known.has_latents(r)).collect();
        let plan = Plan {
            image: pair.image,
            size,
            cuts,
            encoded,
            flipped: self.config.flip && draw(self.seed, sample_id, Purpose::Flip, 0) >> 63 == 1,
            embedded: known.has_text(),
            hash: self.hashes.phash && facts.phash.is_none(),
        };
        verdict(Verdict::Kept(plan), &facts)
    }

    fn refusal(&self, stage: FilterStage, facts: &RowFacts) -> Option<Verdict<'static>> {
        self.filters.find_rejection(stage, facts).map(|name| Verdict::Rejected(name.to_owned()))
    }

    /// The image's cut at each resolution.
    fn cuts(&self, sample_id: u64, image: (u32, u32)) -> impl Iterator<Item = Option<Cut>> {
        self.config.resolutions.iter().zip(&self.sizes).map(move |(&resolution, sizes)| {
            let random = self.config.crop == Crop::Random;
            let place = random.then(|| draw(self.seed, sample_id, Purpose::Crop, resolution));
            Cut::new(image, sizes, place)
        })
    }

    /// Writes a kept row's pixels to its places, unless they are damaged or a filter refuses them.
    pub(crate) fn decode(&self, row: &mut Row, slots: Vec<&mut [u8]>) {
        let Some(plan) = row.plan().filter(|plan| plan.needs_image()) else { return };
        let mut hashes = row.hashes;
        match self.write_pixels(plan, &mut hashes, slots) {
            Err(error) => row.verdict = Verdict::Quarantined(error),
            Ok(refused) => {
                row.hashes = hashes;
                if let Some(name) = refused {
                    row.verdict = Verdict::Rejected(name);
                }
            }
        }
    }

    /// Gives the name of the filter that refuses the pixels, if one does.
    fn write_pixels(
        &self,
        plan: &Plan,
        hashes: &mut Hashes,
        slots: Vec<&mut [u8]>,
    ) -> Result<Option<String>, RowError> {
        let strip = self.decode_image(plan)?;
        if plan.hash {
            let hash = phash(&strip.image)?;
            hashes.phash = Some(hash);
            if let Some(name) = self.filters.find_pixel_rejection(hash) {
                return Ok(Some(name.to_owned()));
            }
        }
        for (resolution, planes) in slots.into_iter().enumerate() {
            if let Some(cut) = plan.new_cut(resolution) {
                let mut resized = self.resize(plan, &strip, cut)?;
                if plan.flipped {
                    mirror(&mut resized);
                }
                resize::to_planes(&resized, planes);
            }
        }
        decode::recycle_buffer(strip.image);
        Ok(None)
    }

    /// Decodes what the cuts need of the image, at a smaller size if that is allowed and enough for what they become. Cuts
    /// whose pixels are not needed count too, so that pixels do not depend on what is known already.
    pub(crate) fn decode_image(&self, plan: &Plan) -> Result<Strip, RowError> {
        let bytes = plan.image.clone()?;
        let cuts = || plan.cuts.iter().flatten();
        let lengths = cuts().flat_map(|cut| [(cut.crop.width, cut.size.0), (cut.crop.height, cut.size.1)]);
        let scale = if self.scaled { Scale::smallest_for(lengths) } else { Scale::FULL };
        let size = scale.scale_size(plan.size);
        let columns = cuts().map(|cut| {
            resize::required_columns(
                size.0,
                cut.crop.scale_to(plan.size, size),
                cut.size,
                self.config.resample,
            )
        });
        let columns = columns.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end));
        // A perceptual hash is one of the whole picture.
        decode::decode_strip(bytes, scale, columns.filter(|_| !plan.hash))
    }

    /// The pixels of a cut.
    pub(crate) fn resize(&self, plan: &Plan, strip: &Strip, cut: &Cut) -> Result<Rgb8, RowError> {
        let area = cut.crop.scale_to(plan.size, (strip.full_width, strip.image.height));
        resize::resize(strip, area, cut.size, self.config.resample)
    }
}
