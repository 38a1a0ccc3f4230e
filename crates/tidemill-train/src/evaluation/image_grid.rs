//! Grids of images with a caption below each, as PNG.

use std::io::Cursor;

use font8x8::UnicodeFonts;
use image::imageops::{FilterType, overlay, resize};
use image::{Rgb, RgbImage};
use tch::{Kind, Tensor};

/// Pixels between images.
const GAP: u32 = 8;
/// Width and height of a character in pixels.
const GLYPH: u32 = 8;
/// Height of a line of text in pixels.
const LINE: u32 = 10;
const CAPTION_LINES: usize = 3;
/// Images are enlarged by a whole factor to at least so many pixels.
const SMALLEST_CELL: u32 = 128;
const INK: Rgb<u8> = Rgb([40, 40, 40]);
const PAPER: Rgb<u8> = Rgb([255, 255, 255]);

/// Arranges images in `columns` columns, each with its caption. Small images are enlarged.
pub fn make_grid(images: &[RgbImage], captions: &[String], columns: u32) -> RgbImage {
    let side = images.iter().map(RgbImage::width).max().unwrap_or(1);
    let cell = side * SMALLEST_CELL.div_ceil(side).max(1);
    let columns = columns.max(1);
    let rows = u32::try_from(images.len()).unwrap_or(0).div_ceil(columns);
    let step = (cell + GAP, cell + CAPTION_LINES as u32 * LINE + 2 * GAP);
    let mut grid = RgbImage::from_pixel(columns * step.0 + GAP, rows * step.1 + GAP, PAPER);
    for (i, image) in (0u32..).zip(images) {
        let (x, y) = (GAP + i % columns * step.0, GAP + i / columns * step.1);
        let enlarged = resize(image, cell, cell, FilterType::CatmullRom);
        overlay(&mut grid, &enlarged, i64::from(x), i64::from(y));
        let caption = captions.get(i as usize).map_or("", String::as_str);
        for (n, line) in (0u32..).zip(wrap_caption(caption, (cell / GLYPH) as usize)) {
            draw_text(&mut grid, line.as_str(), x, y + cell + GAP / 2 + n * LINE);
        }
    }
    grid
}

/// Encodes an image as PNG.
///
/// # Errors
/// If the encoder fails.
pub fn encode_png(image: &RgbImage) -> Result<Vec<u8>, image::ImageError> {
    let mut bytes = Cursor::new(Vec::new());
    image.write_to(&mut bytes, image::ImageFormat::Png)?;
    Ok(bytes.into_inner())
}

/// Converts decoded images [N, 3, H, W] with values nominally in [-1, 1] to 8-bit RGB, rounded as
/// diffusers' `numpy_to_pil` does.
pub fn to_images(images: &Tensor) -> Vec<RgbImage> {
    let bytes = ((images.to_kind(Kind::Float) * 0.5 + 0.5).clamp(0.0, 1.0) * 255.0)
        .round()
        .to_kind(Kind::Uint8)
        .permute([0, 2, 3, 1])
        .contiguous()
        .to_device(tch::Device::Cpu);
    let (count, height, width) = (bytes.size()[0], bytes.size()[1] as u32, bytes.size()[2] as u32);
    let image = |i| {
        let one = bytes.get(i).reshape([-1]);
        let mut data = vec![0u8; one.numel()];
        one.copy_data(&mut data, one.numel());
        RgbImage::from_raw(width, height, data)
    };
    (0..count).filter_map(image).collect()
}

/// Breaks a caption into at most [`CAPTION_LINES`] lines of `width` characters. The rest is
/// replaced by "...".
fn wrap_caption(caption: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in caption.split_whitespace() {
        let last = lines.len() - 1;
        let line = &mut lines[last];
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_string());
        }
    }
    if lines.len() > CAPTION_LINES {
        lines.truncate(CAPTION_LINES);
        let short: String = lines[CAPTION_LINES - 1].chars().take(width.saturating_sub(3)).collect();
        lines[CAPTION_LINES - 1] = short + "...";
    }
    lines.iter().map(|line| line.chars().take(width).collect()).collect()
}

/// Draws one line of text with its top left corner at (x, y).
pub fn draw_text(image: &mut RgbImage, text: &str, x: u32, y: u32) {
    for (i, character) in (0u32..).zip(text.chars()) {
        let glyph = font8x8::BASIC_FONTS.get(character).or_else(|| font8x8::LATIN_FONTS.get(character));
        let Some(glyph) = glyph.or_else(|| font8x8::BASIC_FONTS.get('?')) else { continue };
        for (row, bits) in (0u32..).zip(glyph) {
            for column in (0..GLYPH).filter(|column| bits >> column & 1 == 1) {
                let (px, py) = (x + i * GLYPH + column, y + row);
                if px < image.width() && py < image.height() {
                    image.put_pixel(px, py, INK);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grid_has_images_and_captions() {
        let red = RgbImage::from_pixel(64, 64, Rgb([255, 0, 0]));
        let grid = make_grid(&[red.clone(), red.clone(), red], &["a red square".into()], 2);
        assert_eq!(grid.get_pixel(GAP + 5, GAP + 5), &Rgb([255, 0, 0]));
        let below = GAP + 128 + GAP / 2;
        let inked = (GAP..GAP + 96).any(|x| (below..below + LINE).any(|y| grid.get_pixel(x, y) == &INK));
        assert!(inked);
    }

    #[test]
    fn long_captions_are_truncated() {
        let lines = wrap_caption("one two three four five six seven eight nine ten", 8);
        assert_eq!(lines, ["one two", "three", "four..."]);
    }

    #[test]
    fn tensors_are_rounded_as_diffusers_does() {
        let images = Tensor::from_slice(&[-1.5f32, 0.0, 1.0]).reshape([1, 3, 1, 1]);
        assert_eq!(to_images(&images)[0].get_pixel(0, 0), &Rgb([0, 128, 255]));
    }
}
