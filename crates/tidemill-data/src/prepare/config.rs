//! The run file's section `[prepare]`: which part of an image becomes pixels, and at which sizes.

use std::collections::{BTreeMap, HashSet};
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::decode::{IccHandling, Rendering};
use crate::error::{Result, invalid_config};
use crate::prepare::aspect_buckets;
use crate::resize::Resample;

/// Resolutions that a U-Net with a factor-8 VAE and three downsamplings can take, within reason.
const RESOLUTIONS: RangeInclusive<u32> = 8..=4096;

/// Sides of a bucket: up to four times a resolution.
const SIDES: RangeInclusive<u32> = 8..=16384;

/// Default of `max_bucket_aspect`, as in SDXL.
const MAX_BUCKET_ASPECT: f64 = 4.0;

/// `[prepare]`: how a kept image becomes pixels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PrepareConfig {
    /// Resolutions R in pixels: squares of R x R, or buckets with about as many pixels. A row is
    /// used at every resolution for which its crop does not have to be enlarged.
    pub resolutions: Vec<u32>,
    /// Which part of an image is used.
    pub crop: Crop,
    /// Mirror images left to right with probability 1/2, drawn by sample id.
    pub flip: bool,
    /// Resampling filter.
    pub resample: Resample,
    /// What becomes of an image's colour profile.
    pub icc: IccHandling,
    /// The colour that transparent pixels are laid over: red, green, blue.
    pub background: [u8; 3],
    /// Decode JPEGs at 1/2, 1/4 or 1/8 of their size where the crop stays at least as large as its
    /// target. This is faster for large images, but pixels differ from Pillow's and depend on all
    /// resolutions. It has no effect if perceptual hashes are computed, because these need the full
    /// image.
    pub scaled_decode: bool,
    /// Write the columns `sha256` and `phash`, which deduplication needs. Blocklists of hashes add
    /// their column themselves.
    pub hashes: bool,
    /// With `crop = "bucket"`: the sides of buckets are multiples of this. By default 64 from R =
    /// 256 on, below that R / 4 rounded to a multiple of 8.
    pub bucket_step: Option<u32>,
    /// With `crop = "bucket"`: greatest ratio of a bucket's long side to its short side; 4 by
    /// default.
    pub max_bucket_aspect: Option<f64>,
    /// With `crop = "bucket"`: the buckets of a resolution as `[width, height]`, instead of those
    /// computed from step and aspect.
    pub buckets: BTreeMap<String, Vec<[u32; 2]>>,
}

/// Which part of an image is used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Crop {
    /// The largest square in the middle.
    #[default]
    Center,
    /// The largest square, at a position drawn by sample id and resolution.
    Random,
    /// The largest rectangle in the middle with the aspect of the nearest bucket.
    Bucket,
}

impl Default for PrepareConfig {
    fn default() -> Self {
        Self {
            resolutions: vec![256],
            crop: Crop::default(),
            flip: false,
            resample: Resample::default(),
            icc: IccHandling::default(),
            background: Rendering::default().background,
            scaled_decode: false,
            hashes: false,
            bucket_step: None,
            max_bucket_aspect: None,
            buckets: BTreeMap::new(),
        }
    }
}

impl PrepareConfig {
    /// The sizes, width and height, that images can have at a resolution: one square, or the
    /// buckets.
    pub fn sizes(&self, resolution: u32) -> Vec<(u32, u32)> {
        if self.crop != Crop::Bucket {
            return vec![(resolution, resolution)];
        }
        if let Some(listed) = self.buckets.get(&resolution.to_string()) {
            return listed.iter().map(|&[width, height]| (width, height)).collect();
        }
        let step = self.bucket_step.unwrap_or_else(|| aspect_buckets::default_step(resolution));
        aspect_buckets::list_buckets(resolution, step, self.max_bucket_aspect.unwrap_or(MAX_BUCKET_ASPECT))
    }

    /// The configuration as input of a digest. Without the keys `icc` and `background` if they have
    /// their defaults, so that digests are what they were before there were these keys.
    pub fn digest_input(&self) -> serde_json::Value {
        let mut settings = serde_json::json!(self);
        if let Some(keys) = settings.as_object_mut().filter(|_| self.rendering() == Rendering::default()) {
            keys.retain(|key, _| !["icc", "background"].contains(&key.as_str()));
        }
        settings
    }

    /// How decoded pixels become RGB.
    pub(crate) fn rendering(&self) -> Rendering {
        Rendering { background: self.background, icc: self.icc }
    }

    /// True if the pixels depend on the run's seed.
    pub(crate) fn uses_seed(&self) -> bool {
        self.flip || self.crop == Crop::Random
    }

    /// Checks resolutions and buckets.
    ///
    /// # Errors
    /// [`crate::Error::Config`] that names the key and says which values are valid.
    pub fn validate(&self) -> Result<()> {
        let key = "prepare.resolutions";
        if self.resolutions.is_empty() {
            return invalid_config(key, "give at least one, such as [256]");
        }
        let mut seen = HashSet::new();
        for &resolution in &self.resolutions {
            check_side(key, resolution, RESOLUTIONS)?;
            if !seen.insert(resolution) {
                return invalid_config(key, format!("{resolution} is listed twice"));
            }
        }
        self.validate_buckets()
    }

    fn validate_buckets(&self) -> Result<()> {
        let given = [
            ("prepare.bucket_step", self.bucket_step.is_some()),
            ("prepare.max_bucket_aspect", self.max_bucket_aspect.is_some()),
            ("prepare.buckets", !self.buckets.is_empty()),
        ];
        if let Some((key, _)) = given.into_iter().find(|(_, given)| *given && self.crop != Crop::Bucket) {
            return invalid_config(
                key,
                "can only be used with crop = \"bucket\"; set that, or remove this key",
            );
        }
        if let Some(step) = self.bucket_step {
            check_side("prepare.bucket_step", step, RESOLUTIONS)?;
        }
        if self.max_bucket_aspect.is_some_and(|aspect| !(1.0..=16.0).contains(&aspect)) {
            return invalid_config(
                "prepare.max_bucket_aspect",
                "is long side / short side, between 1 and 16",
            );
        }
        self.buckets.iter().try_for_each(|(resolution, sizes)| self.validate_list(resolution, sizes))
    }

    fn validate_list(&self, resolution: &str, sizes: &[[u32; 2]]) -> Result<()> {
        let key = format!("prepare.buckets.{resolution}");
        if !self.resolutions.iter().any(|known| known.to_string() == resolution) {
            return invalid_config(
                key,
                format!("{resolution} is not in prepare.resolutions, {:?}", self.resolutions),
            );
        }
        if sizes.is_empty() {
            return invalid_config(key, "give at least one [width, height], or leave the list out");
        }
        let mut seen = HashSet::new();
        for size in sizes {
            size.iter().try_for_each(|&side| check_side(&key, side, SIDES))?;
            if !seen.insert(size) {
                return invalid_config(key, format!("{size:?} is listed twice"));
            }
        }
        Ok(())
    }
}

fn check_side(key: &str, side: u32, range: RangeInclusive<u32>) -> Result<()> {
    if range.contains(&side) && side.is_multiple_of(8) {
        return Ok(());
    }
    let (low, high) = range.into_inner();
    invalid_config(key, format!("{side} is not a multiple of 8 between {low} and {high}"))
}
