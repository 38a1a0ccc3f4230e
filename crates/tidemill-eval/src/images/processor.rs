//! `preprocessor_config.json` of transformers: shortest edge, center crop, mean and deviation.

use std::path::Path;

use serde::Deserialize;
use tch::{Kind, Tensor};
use tidemill_data::RowError;
use tidemill_data::decode::{Rgb8, Strip};
use tidemill_data::prepare::ScoreView;
use tidemill_data::resize::{Rect, Resample, resize};

use crate::error::{Error, Result};

/// The most pixels of an image after the resize. A stripe of a few pixels' width would need gigabytes.
const MAX_RESIZED_PIXELS: u64 = 50_000_000;

/// Resizes, crops and normalises images as transformers' `CLIPImageProcessor` and
/// `BitImageProcessor` do with Pillow.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageProcessor {
    /// The shorter side after the resize.
    shortest_edge: u32,
    /// Whether both sides are resized to `shortest_edge`, whatever the image's aspect.
    is_stretched: bool,
    resample: Resample,
    /// Side of the square that is cut from the middle.
    crop: u32,
    mean: [f32; 3],
    std: [f32; 3],
}

/// The keys that shape the result. Others name the file's origin.
#[derive(Deserialize)]
struct File {
    image_processor_type: Option<String>,
    #[serde(default)]
    do_pad: Option<bool>,
    #[serde(default)]
    do_flip_channel_order: Option<bool>,
    size: Size,
    crop_size: Option<Size>,
    resample: u8,
    image_mean: [f32; 3],
    image_std: [f32; 3],
    #[serde(default = "yes")]
    do_resize: bool,
    #[serde(default = "yes")]
    do_center_crop: bool,
    #[serde(default = "yes")]
    do_rescale: bool,
    #[serde(default = "yes")]
    do_normalize: bool,
    rescale_factor: Option<f64>,
}

fn yes() -> bool {
    true
}

/// A size, in one of the forms that transformers has had.
#[derive(Clone, Copy, Deserialize)]
#[serde(untagged)]
enum Size {
    Side(u32),
    Shortest { shortest_edge: u32 },
    Both { height: u32, width: u32 },
}

impl ImageProcessor {
    /// Reads `preprocessor_config.json` of a model folder.
    ///
    /// # Errors
    /// If it is missing, or asks for something that is not supported.
    pub fn read(dir: &Path) -> Result<Self> {
        let path = dir.join("preprocessor_config.json");
        let text =
            std::fs::read_to_string(&path).map_err(|source| Error::Io { path: path.clone(), source })?;
        Self::parse(&text).map_err(|message| Error::File { path, message })
    }

    fn parse(text: &str) -> std::result::Result<Self, String> {
        let file: File = serde_json::from_str(text).map_err(|e| e.to_string())?;
        // Processors of other models read the same keys in other ways.
        if let Some(name) = file
            .image_processor_type
            .filter(|name| !["CLIP", "Bit"].iter().any(|known| name.starts_with(known)))
        {
            return Err(format!(
                "`image_processor_type` = {name} is not supported; those of CLIP and Bit are"
            ));
        }
        let extras = [("do_pad", file.do_pad), ("do_flip_channel_order", file.do_flip_channel_order)];
        if let Some((key, _)) = extras.iter().find(|(_, value)| *value == Some(true)) {
            return Err(format!("`{key}` = true is not supported"));
        }
        let switches = [
            ("do_resize", file.do_resize),
            ("do_rescale", file.do_rescale),
            ("do_normalize", file.do_normalize),
        ];
        if let Some((key, _)) = switches.iter().find(|(_, is_on)| !is_on) {
            return Err(format!("`{key}` = false is not supported"));
        }
        if file.rescale_factor.is_some_and(|factor| (factor * 255.0 - 1.0).abs() > 1e-9) {
            return Err("`rescale_factor` must be 1/255".into());
        }
        let resample = match file.resample {
            1 => Resample::Lanczos,
            2 => Resample::Bilinear,
            3 => Resample::Bicubic,
            4 => Resample::Area,
            other => return Err(format!("`resample` = {other} is not supported; 1 to 4 are")),
        };
        let (shortest_edge, is_stretched) = match file.size {
            Size::Side(side) | Size::Shortest { shortest_edge: side } => (side, false),
            Size::Both { height, width } if height == width => (height, true),
            Size::Both { .. } => return Err("`size` must be square".into()),
        };
        let crop = match file.crop_size.filter(|_| file.do_center_crop) {
            None if is_stretched => shortest_edge,
            None => return Err("without a center crop, `size` must give height and width".into()),
            Some(Size::Side(side) | Size::Shortest { shortest_edge: side }) => side,
            Some(Size::Both { height, width }) if height == width => height,
            Some(Size::Both { .. }) => return Err("`crop_size` must be square".into()),
        };
        if crop == 0 || crop > shortest_edge {
            return Err(format!("`crop_size` must be between 1 and `size` = {shortest_edge}"));
        }
        let (mean, std) = (file.image_mean, file.image_std);
        if std.iter().any(|std| std.is_nan() || *std <= 0.0) {
            return Err("`image_std` must be positive".into());
        }
        Ok(Self { shortest_edge, is_stretched, resample, crop, mean, std })
    }

    /// The side of the images that [`Self::process`] returns.
    pub fn side(&self) -> u32 {
        self.crop
    }

    /// An image as planes [3, side, side].
    ///
    /// # Errors
    /// If the image has no pixels.
    pub fn process(&self, image: Rgb8) -> Result<Vec<f32>> {
        let cropped = self.view(&Strip::from_image(image))?;
        let area = (self.crop * self.crop) as usize;
        let mut planes = vec![0.0; 3 * area];
        for (i, pixel) in cropped.pixels.chunks_exact(3).enumerate() {
            for channel in 0..3 {
                let value = f32::from(pixel[channel]) / 255.0;
                planes[channel * area + i] = (value - self.mean[channel]) / self.std[channel];
            }
        }
        Ok(planes)
    }

    /// Cropped images [N, 3, side, side] (u8) as the network takes them, f32: what [`Self::process`]
    /// makes of them.
    pub fn normalise(&self, images: &Tensor) -> Tensor {
        let per_channel = |values: [f32; 3]| Tensor::from_slice(&values).view([3, 1, 1]).to(images.device());
        (images.to_kind(Kind::Float) / 255.0 - per_channel(self.mean)) / per_channel(self.std)
    }

    /// Width and height after the resize; the longer side is rounded down.
    fn resized_size(&self, width: u32, height: u32) -> (u32, u32) {
        let edge = self.shortest_edge;
        if self.is_stretched || width == height || width == 0 || height == 0 {
            return (edge, edge);
        }
        let scale = |long: u32, short: u32| {
            u32::try_from(u64::from(edge) * u64::from(long) / u64::from(short)).unwrap_or(u32::MAX)
        };
        if width < height { (edge, scale(height, width)) } else { (scale(width, height), edge) }
    }
}

impl ScoreView for ImageProcessor {
    fn side(&self) -> u32 {
        self.crop
    }

    fn view(&self, image: &Strip) -> std::result::Result<Rgb8, RowError> {
        let (width, height) = (image.full_width, image.image.height);
        let size = self.resized_size(width, height);
        if u64::from(size.0) * u64::from(size.1) > MAX_RESIZED_PIXELS {
            let message =
                format!("{width}x{height} pixels would become {}x{} before the crop", size.0, size.1);
            return Err(RowError::Size(message));
        }
        let resized = resize(image, Rect { x: 0, y: 0, width, height }, size, self.resample)?;
        let (left, top) = ((size.0 - self.crop) / 2, (size.1 - self.crop) / 2);
        let side = 3 * self.crop as usize;
        let start = |row: usize| 3 * ((top as usize + row) * size.0 as usize + left as usize);
        let rows = (0..self.crop as usize).map(|row| &resized.pixels[start(row)..start(row) + side]);
        Ok(Rgb8 { width: self.crop, height: self.crop, pixels: rows.collect::<Vec<_>>().concat() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIP: &str = r#"{"size": 224, "crop_size": 224, "resample": 3, "do_resize": true,
        "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}"#;

    #[test]
    fn all_forms_of_a_size_are_read() {
        let plain = ImageProcessor::parse(CLIP).unwrap();
        assert_eq!((plain.shortest_edge, plain.crop, plain.is_stretched), (224, 224, false));
        for (size, crop) in [
            (r#"{"shortest_edge": 224}"#, r#"{"height": 224, "width": 224}"#),
            ("224", "{\"shortest_edge\": 224}"),
        ] {
            let text = CLIP
                .replace("\"size\": 224", &format!("\"size\": {size}"))
                .replace("\"crop_size\": 224", &format!("\"crop_size\": {crop}"));
            assert_eq!(ImageProcessor::parse(&text).unwrap(), plain);
        }
        let stretched = CLIP.replace("\"size\": 224", "\"size\": {\"height\": 224, \"width\": 224}");
        assert!(ImageProcessor::parse(&stretched).unwrap().is_stretched);
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        for (from, to, key) in [
            ("\"do_resize\": true", "\"do_resize\": false", "do_resize"),
            ("\"resample\": 3", "\"resample\": 0", "resample"),
            ("\"crop_size\": 224", "\"crop_size\": 225", "crop_size"),
            ("\"size\": 224", "\"size\": {\"height\": 2, \"width\": 3}", "size"),
            ("0.26862954", "0.0", "image_std"),
            ("\"do_resize\": true", "\"do_pad\": true", "do_pad"),
            (
                "\"do_resize\": true",
                "\"image_processor_type\": \"ViTImageProcessor\"",
                "image_processor_type",
            ),
            ("\"do_resize\": true", "\"rescale_factor\": 1.0", "rescale_factor"),
        ] {
            let refused = ImageProcessor::parse(&CLIP.replacen(from, to, 1)).unwrap_err();
            assert!(refused.contains(&format!("`{key}`")), "{refused}");
        }
    }

    #[test]
    fn stripes_are_refused_before_memory_is_taken() {
        let stripe = Rgb8 { width: 65_535, height: 1, pixels: vec![0; 3 * 65_535] };
        let refused = ImageProcessor::parse(CLIP).unwrap().process(stripe).unwrap_err().to_string();
        assert!(refused.contains("65535x1 pixels would become 14679840x224"), "{refused}");
    }

    #[test]
    fn the_longer_side_is_rounded_down() {
        let processor = ImageProcessor::parse(CLIP).unwrap();
        assert_eq!(processor.resized_size(500, 375), (298, 224));
        assert_eq!(processor.resized_size(375, 500), (224, 298));
        assert_eq!(processor.resized_size(64, 64), (224, 224));
    }
}
