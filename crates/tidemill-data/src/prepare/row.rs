//! The outcome of one row, and the plan for a row that is kept.

use crate::decode::ImageInfo;
use crate::error::RowError;
use crate::prepare::crop::ResizedCrop;
use crate::prepare::image_hashes::ImageHashes;

/// A row with its outcome and what is known of its image.
pub struct Row<'a> {
    pub outcome: Outcome<'a>,
    pub info: Option<ImageInfo>,
    pub hashes: ImageHashes,
    /// The computed scores that are known, in the order of their columns.
    pub scores: Vec<Option<f32>>,
}

/// What became of a row.
pub enum Outcome<'a> {
    /// The row is kept, with the plan for its image and caption.
    Kept(Plan<'a>),
    /// The filter with this name rejected the row.
    Rejected(String),
    /// The row is unreadable.
    Quarantined(RowError),
}

/// What to compute for a kept row.
pub struct Plan<'a> {
    /// The encoded image, or why it is missing. A missing image is no error if the image is not
    /// needed.
    pub image: Result<&'a [u8], RowError>,
    /// Width and height of the upright image.
    pub size: (u32, u32),
    /// The crop at each resolution; `None` if the image is too small for it.
    pub crops: Vec<Option<ResizedCrop>>,
    /// For each resolution: the latents exist already, so pixels are not needed.
    pub has_latents: Vec<bool>,
    /// The image is mirrored left to right.
    pub is_flipped: bool,
    /// For each text encoder: the embedding of the caption exists already, so token ids are not needed.
    pub has_text: Vec<bool>,
    /// The perceptual hash must be computed.
    pub needs_phash: bool,
    /// A score is not known yet.
    pub needs_scores: bool,
    /// A captioner has to make the caption.
    pub needs_caption: bool,
}

impl Plan<'_> {
    /// True if anything remains to be computed from the image.
    pub fn needs_image(&self) -> bool {
        self.needs_phash
            || self.needs_scores
            || self.needs_caption
            || (0..self.crops.len()).any(|index| self.needed_crop(index).is_some())
    }

    /// The crop at the resolution with this index, if its pixels are needed.
    pub fn needed_crop(&self, index: usize) -> Option<&ResizedCrop> {
        self.crops.get(index)?.as_ref().filter(|_| !self.has_latents[index])
    }
}

impl Row<'_> {
    /// An unreadable row of whose image nothing is known.
    pub fn quarantined(error: RowError) -> Self {
        Self::without_image(Outcome::Quarantined(error))
    }

    /// A row that a filter rejects although nothing is known of its image.
    pub fn rejected(filter: &str) -> Self {
        Self::without_image(Outcome::Rejected(filter.to_owned()))
    }

    fn without_image(outcome: Outcome<'static>) -> Self {
        Self { outcome, info: None, hashes: ImageHashes::default(), scores: Vec::new() }
    }

    /// The plan of a kept row.
    pub fn plan(&self) -> Option<&Plan<'_>> {
        match &self.outcome {
            Outcome::Kept(plan) => Some(plan),
            _ => None,
        }
    }
}
