//! Previews and grids over steps, within a number of bytes: the page stays small, however long the
//! run was.

use std::io::Cursor;
use std::path::{Path, PathBuf};

use image::{ImageFormat, imageops::FilterType};
use tidemill_report::{Gallery, Picture};

/// The most bytes of pictures in a run's part of the page.
const MOST_BYTES: usize = 3_000_000;
/// The most pictures of a gallery.
const MOST_PICTURES: usize = 16;
/// The longest side of a picture, in pixels.
const LONGEST_SIDE: u32 = 900;

/// The bytes that are left.
pub struct PictureBudget {
    left: usize,
    /// Pictures that were left out.
    skipped: usize,
}

impl Default for PictureBudget {
    fn default() -> Self {
        Self { left: MOST_BYTES, skipped: 0 }
    }
}

impl PictureBudget {
    /// What a reader should know.
    pub fn remarks(&self) -> Option<String> {
        let skipped = self.skipped;
        (skipped > 0).then(|| format!("{skipped} pictures are left out, so that the page stays small"))
    }

    /// A picture, smaller if it is large. None if it cannot be read, or there is no room.
    fn take(&mut self, path: &Path) -> Option<Picture> {
        let bytes = std::fs::read(path).ok()?;
        let bytes = shrink(&bytes).unwrap_or(bytes);
        let picture = Picture::new("image/png", &bytes);
        let left = self.left.checked_sub(picture.len());
        if left.is_none() {
            self.skipped += 1;
        }
        self.left = left?;
        Some(picture)
    }
}

/// The previews of a run.
pub fn previews(folder: &Path, budget: &mut PictureBudget) -> Option<Gallery> {
    let entries = std::fs::read_dir(folder.join("previews")).into_iter().flatten().flatten();
    let step_of = |path: PathBuf| {
        let step = path.file_name()?.to_str()?.strip_prefix("step-")?.strip_suffix(".png")?.parse().ok()?;
        Some((step, path))
    };
    gallery_of("Previews", entries.filter_map(|entry| step_of(entry.path())).collect(), budget)
}

/// Pictures by step. Of many some are shown, always with the first and the last.
pub fn gallery_of(
    title: &str,
    mut files: Vec<(u64, PathBuf)>,
    budget: &mut PictureBudget,
) -> Option<Gallery> {
    files.sort();
    let picked = evenly_spaced(files.len(), MOST_PICTURES);
    budget.skipped += files.len() - picked.len();
    // The last is the most important one.
    let pictures = picked.into_iter().rev().filter_map(|i| Some((files[i].0, budget.take(&files[i].1)?)));
    let mut pictures: Vec<(u64, Picture)> = pictures.collect();
    pictures.reverse();
    (!pictures.is_empty()).then(|| Gallery { title: title.to_owned(), pictures })
}

/// At most `most` of `count` indices, with the first and the last.
fn evenly_spaced(count: usize, most: usize) -> Vec<usize> {
    if count <= most {
        return (0..count).collect();
    }
    (0..most).map(|i| i * (count - 1) / (most - 1)).collect()
}

/// A PNG whose longest side is short enough; none if it is already, or cannot be read.
fn shrink(bytes: &[u8]) -> Option<Vec<u8>> {
    let picture = image::load_from_memory(bytes).ok()?;
    if picture.width().max(picture.height()) <= LONGEST_SIDE {
        return None;
    }
    let mut small = Cursor::new(Vec::new());
    picture
        .resize(LONGEST_SIDE, LONGEST_SIDE, FilterType::Triangle)
        .write_to(&mut small, ImageFormat::Png)
        .ok()?;
    Some(small.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_and_last_are_always_picked() {
        for (count, expected) in [(0, vec![]), (3, vec![0, 1, 2]), (10, vec![0, 3, 6, 9])] {
            assert_eq!(evenly_spaced(count, 4), expected);
        }
        assert_eq!(evenly_spaced(1000, 16).len(), 16);
    }

    #[test]
    fn pictures_fit_into_the_budget() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("previews")).unwrap();
        for step in [100, 200, 300] {
            // Noise, which does not compress.
            let noise = |x: u32, y: u32| image::Rgb([(x * 7919 + y * 104_729 + step) as u8; 3]);
            let picture = image::RgbImage::from_fn(1200, 300, noise);
            picture.save(folder.path().join(format!("previews/step-{step:08}.png"))).unwrap();
        }
        let mut budget = PictureBudget::default();
        let gallery = previews(folder.path(), &mut budget).unwrap();
        assert_eq!((gallery.pictures.len(), budget.remarks()), (3, None));
        let size = gallery.pictures[0].1.len();
        let mut budget = PictureBudget { left: 2 * size + size / 2, skipped: 0 };
        let gallery = previews(folder.path(), &mut budget).unwrap();
        let steps: Vec<u64> = gallery.pictures.iter().map(|picture| picture.0).collect();
        assert!(steps.contains(&300) && steps.len() < 3, "{steps:?}");
        assert!(budget.remarks().unwrap().contains("left out"));
    }
}
