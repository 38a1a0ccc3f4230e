//! The pixels of kept rows: decode, crop, resize, flip, and write as planes.

use crate::decode::{self, Rendering, Rgb8, Scale, Strip};
use crate::error::RowError;
use crate::filter::filters::Filters;
use crate::perceptual_hash::phash;
use crate::prepare::captioner_view::CaptionerView;
use crate::prepare::computed_scores::ComputedScores;
use crate::prepare::crop::{ResizedCrop, flip_horizontally};
use crate::prepare::image_hashes::ImageHashes;
use crate::prepare::row::{Outcome, Plan, Row};
use crate::resize::{self, Resample};

/// Computes the pixels of rows.
pub struct PixelWriter {
    pub filters: Filters,
    pub resample: Resample,
    /// JPEGs may be decoded at a reduced size.
    pub is_scaled: bool,
    pub rendering: Rendering,
    /// The scores that are computed of kept rows.
    pub scores: ComputedScores,
    /// What a captioner sees, if there is one.
    pub captioner: Option<CaptionerView>,
}

impl PixelWriter {
    /// Writes a kept row's pixels to its slots: one per resolution, and those for its scores and its
    /// captioner. The row becomes rejected if a
    /// filter rejects its perceptual hash, and quarantined if its pixels are damaged.
    pub fn decode_row(&self, row: &mut Row, slots: Vec<&mut [u8]>) {
        let Some(plan) = row.plan().filter(|plan| plan.needs_image()) else { return };
        let mut hashes = row.hashes;
        match self.write_pixels(plan, &mut hashes, slots) {
            Err(error) => row.outcome = Outcome::Quarantined(error),
            Ok(rejected_by) => {
                row.hashes = hashes;
                if let Some(filter) = rejected_by {
                    row.outcome = Outcome::Rejected(filter);
                }
            }
        }
    }

    /// Returns the name of the filter that rejects the pixels, if one does.
    fn write_pixels(
        &self,
        plan: &Plan,
        hashes: &mut ImageHashes,
        mut slots: Vec<&mut [u8]>,
    ) -> Result<Option<String>, RowError> {
        let strip = self.decode_image(plan)?;
        if plan.needs_phash {
            let hash = phash(&strip.image)?;
            hashes.phash = Some(hash);
            if let Some(filter) = self.filters.find_pixel_rejection(hash) {
                return Ok(Some(filter.to_owned()));
            }
        }
        let caption_slot = self.captioner.and_then(|captioner| Some((captioner, slots.pop()?)));
        if let Some((captioner, pixels)) = caption_slot.filter(|_| plan.needs_caption) {
            pixels.copy_from_slice(&captioner.view(&strip)?.pixels);
        }
        let score_slot = self.scores.view().and_then(|view| Some((view, slots.pop()?)));
        if let Some((view, planes)) = score_slot.filter(|_| plan.needs_scores) {
            resize::to_planes(&view.view(&strip)?, planes);
        }
        for (index, planes) in slots.into_iter().enumerate() {
            if let Some(crop) = plan.needed_crop(index) {
                let mut resized = self.resize_crop(plan, &strip, crop)?;
                if plan.is_flipped {
                    flip_horizontally(&mut resized);
                }
                resize::to_planes(&resized, planes);
            }
        }
        decode::recycle_buffer(strip.image);
        Ok(None)
    }

    /// Decodes the columns that the crops need, at a reduced size if that is allowed and large
    /// enough for all crops. Crops whose pixels are not needed count too, so that pixels do not
    /// depend on what an earlier run has computed.
    pub fn decode_image(&self, plan: &Plan) -> Result<Strip, RowError> {
        let bytes = plan.image.clone()?;
        let crops = || plan.crops.iter().flatten();
        let lengths =
            crops().flat_map(|ResizedCrop { crop, size }| [(crop.width, size.0), (crop.height, size.1)]);
        let scale = if self.is_scaled { Scale::smallest_for(lengths) } else { Scale::FULL };
        let size = scale.scale_size(plan.size);
        let columns = crops().map(|ResizedCrop { crop, size: target }| {
            resize::required_columns(size.0, crop.scale_to(plan.size, size), *target, self.resample)
        });
        let columns = columns.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end));
        let needs_all = plan.needs_phash || plan.needs_scores || plan.needs_caption;
        decode::decode_strip(bytes, scale, columns.filter(|_| !needs_all), self.rendering)
    }

    /// Resizes a crop of a decoded image.
    pub fn resize_crop(&self, plan: &Plan, strip: &Strip, crop: &ResizedCrop) -> Result<Rgb8, RowError> {
        let area = crop.crop.scale_to(plan.size, (strip.full_width, strip.image.height));
        resize::resize(strip, area, crop.size, self.resample)
    }
}
