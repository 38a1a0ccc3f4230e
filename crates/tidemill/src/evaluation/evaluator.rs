//! The work on one step: blocks are drawn, judged and committed until all are there.

use std::time::{Duration, Instant};

use image::RgbImage;
use tidemill_data::decode::Rgb8;
use tidemill_io::Location;
use tidemill_synth::{RgbView, detect_object};
use tidemill_train::image_grid;

use super::block_store::BlockStore;
use super::block_table::PictureResult;
use super::claims::Claims;
use super::judges::Judges;
use super::metric::Metric;
use super::plan::{Plan, PlannedPicture};
use crate::engine::stop_signal::StopSignal;
use crate::error::{Error, Result};
use crate::progress::{Progress, Reporter};
use crate::sampling::{Drawing, ImageGenerator};

/// Pause between two looks for blocks that others work on.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// What an evaluator needs for any step.
pub struct Evaluator<'a> {
    pub location: &'a Location,
    pub claims: &'a Claims,
    pub plan: &'a Plan,
    pub drawing: Drawing,
    pub judges: &'a Judges,
    pub metrics: &'a [Metric],
    /// Whether pictures are stored.
    pub keeps_pictures: bool,
    /// The evaluator's name, for people.
    pub name: &'a str,
    pub reporter: &'a Reporter,
    pub stop: &'a StopSignal,
}

impl Evaluator<'_> {
    /// Works on a step's blocks until all are committed, by this evaluator or by others. `generator`
    /// draws with the step's weights, which stay even if the checkpoint is removed meanwhile.
    ///
    /// # Errors
    /// If the store or a network fails, or a signal stops the work.
    pub fn work_on(&self, step: u64, generator: &ImageGenerator) -> Result<()> {
        let store = BlockStore::new(self.location, step);
        let total = self.plan.num_pictures() * self.drawing.steps;
        let progress = self.reporter.start_progress(&format!("step {step}"), "image steps", total as u64);
        let result = self.work_until_committed(&store, generator, &progress);
        progress.finish();
        result
    }

    fn work_until_committed(
        &self,
        store: &BlockStore,
        generator: &ImageGenerator,
        progress: &Progress,
    ) -> Result<()> {
        loop {
            let committed = store.list_committed()?;
            let missing: Vec<usize> =
                (0..self.plan.num_blocks()).filter(|block| !committed.contains(block)).collect();
            // Once there is a record, the blocks are removed.
            if missing.is_empty() || store.has_record()? {
                return Ok(());
            }
            let mut worked = false;
            for block in missing {
                if self.stop.is_raised() {
                    let (done, total) = (committed.len() as u64, self.plan.num_blocks() as u64);
                    return Err(Error::Interrupted { done, total, unit: "blocks" });
                }
                let work = || self.evaluate_block(store, block, generator, progress);
                worked |= match self.claims.run(&store.claim_key(block), work) {
                    // Another evaluator put the record and removed the files of the blocks.
                    Err(_) if store.has_record()? => return Ok(()),
                    result => result?.is_some(),
                };
            }
            if !worked {
                std::thread::sleep(POLL_INTERVAL);
            }
        }
    }

    /// Draws, judges and commits a block, unless it is committed meanwhile.
    fn evaluate_block(
        &self,
        store: &BlockStore,
        block: usize,
        generator: &ImageGenerator,
        progress: &Progress,
    ) -> Result<()> {
        if store.list_committed()?.contains(&block) || store.has_record()? {
            return Ok(());
        }
        let started = Instant::now();
        let pictures = self.plan.block(block);
        let images = self.draw(&pictures, generator, progress)?;
        let mut results = self.judge(&pictures, &images)?;
        // After a long pause the block may have been taken over, and all files been removed.
        if store.has_record()? {
            return Ok(());
        }
        let attempt = store.new_attempt(block);
        for (result, image) in results.iter_mut().zip(&images) {
            if let (Ok(image), true) = (image, self.keeps_pictures) {
                let png = image_grid::encode_png(image).map_err(|e| Error::Write {
                    path: self.location.uri_of(&attempt),
                    source: std::io::Error::other(e),
                })?;
                result.path = Some(store.put_picture(&attempt, result.index as usize, png)?);
            }
        }
        store.commit(block, &results, self.name, started.elapsed().as_secs_f64())?;
        Ok(())
    }

    /// Draws pictures of one guidance scale. If a batch cannot be drawn, each of its pictures gets a
    /// try of its own, so that one of them does not cost the others. Only a picture that is not
    /// finite is the picture's fault. Any other error is this evaluator's: others may draw the block.
    fn draw(
        &self,
        pictures: &[PlannedPicture],
        generator: &ImageGenerator,
        progress: &Progress,
    ) -> Result<Vec<std::result::Result<RgbImage, String>>> {
        let guidance = pictures.first().map_or(self.drawing.guidance, |picture| picture.guidance);
        let drawing = Drawing { guidance, ..self.drawing };
        let draw = |pictures: &[PlannedPicture]| {
            let prompts: Vec<String> =
                pictures.iter().map(|picture| self.plan.prompts[picture.prompt].text.clone()).collect();
            let noise: Vec<u64> = pictures.iter().map(|picture| picture.noise).collect();
            generator.draw(&prompts, &noise, &drawing, |n| progress.add(n as u64))
        };
        let mut images = Vec::with_capacity(pictures.len());
        for batch in pictures.chunks(drawing.batch_size) {
            if let Ok(drawn) = draw(batch) {
                images.extend(drawn.into_iter().map(Ok));
                continue;
            }
            for picture in batch {
                match draw(std::slice::from_ref(picture)) {
                    Ok(drawn) => images.extend(drawn.into_iter().map(Ok)),
                    Err(error @ Error::NotFinite { .. }) => images.push(Err(error.to_string())),
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(images)
    }

    fn judge(
        &self,
        pictures: &[PlannedPicture],
        images: &[std::result::Result<RgbImage, String>],
    ) -> Result<Vec<PictureResult>> {
        let drawn: Vec<(&PlannedPicture, &RgbImage)> =
            pictures.iter().zip(images).filter_map(|(p, image)| Some((p, image.as_ref().ok()?))).collect();
        let pixels: Vec<Rgb8> = drawn.iter().map(|(_, image)| to_rgb8(image)).collect();
        let prompts: Vec<String> =
            drawn.iter().map(|(picture, _)| self.plan.prompts[picture.prompt].text.clone()).collect();
        let mut judged = self.judges.judge(&pixels, Some(&prompts))?.into_iter();
        let result = |(planned, image): (&PlannedPicture, &std::result::Result<RgbImage, String>)| {
            let mut result = self.new_result(planned);
            let verdict = image.as_ref().map_err(Clone::clone).and_then(|image| {
                let judged = judged.next().unwrap_or_else(|| Err("it was not judged".into()))?;
                Ok((image, judged))
            });
            match verdict {
                Err(problem) => result.error = Some(problem),
                Ok((image, judged)) => {
                    (result.features, result.scores) = (judged.features, judged.scores);
                    result.scores.extend(self.score_scene(planned, image));
                }
            }
            result
        };
        Ok(pictures.iter().zip(images).map(result).collect())
    }

    fn new_result(&self, planned: &PlannedPicture) -> PictureResult {
        let prompt = &self.plan.prompts[planned.prompt];
        PictureResult {
            index: planned.index as u64,
            prompt_index: planned.prompt as u64,
            prompt: prompt.text.clone(),
            category: prompt.category.clone(),
            image: planned.image as u64,
            seed: self.drawing.seed,
            guidance: planned.guidance,
            path: None,
            error: None,
            scores: Default::default(),
            features: Default::default(),
        }
    }

    /// Whether the image of a synthetic scene shows its colour and shape: 1 or 0.
    fn score_scene(&self, planned: &PlannedPicture, image: &RgbImage) -> Option<(String, f64)> {
        let scene = self.plan.prompts[planned.prompt].scene.as_ref()?;
        if !self.metrics.contains(&Metric::SceneScore) {
            return None;
        }
        let view = RgbView::new(image.width() as usize, image.height() as usize, image.as_raw()).ok()?;
        let found = detect_object(&view);
        let is_right = found.is_some_and(|found| found.colour == scene.colour && found.shape == scene.shape);
        Some((Metric::SceneScore.name().into(), f64::from(u8::from(is_right))))
    }
}

fn to_rgb8(image: &RgbImage) -> Rgb8 {
    Rgb8 { width: image.width(), height: image.height(), pixels: image.as_raw().clone() }
}
