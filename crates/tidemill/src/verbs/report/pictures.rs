//! Previews and grids over steps, within a number of bytes: the page stays small, however long the
//! run was.

use std::io::Cursor;
use std::path::{Path, PathBuf};

use image::{ImageFormat, imageops::FilterType};
use tidemill_report::{Gallery, Picture};

/// The most bytes of a gallery in the page.
const MOST_BYTES: usize = 1_500_000;
/// The most pictures of a gallery.
const MOST_PICTURES: usize = 16;
/// The longest side of a picture, in pixels.
const LONGEST_SIDE: u32 = 900;

/// The previews of a run.
pub fn previews(folder: &Path, remarks: &mut Vec<String>) -> Option<Gallery> {
    let entries = std::fs::read_dir(folder.join("previews")).into_iter().flatten().flatten();
    let step_of = |path: PathBuf| {
        let step = path.file_name()?.to_str()?.strip_prefix("step-")?.strip_suffix(".png")?.parse().ok()?;
        Some((step, path))
    };
    gallery_of("Previews", entries.filter_map(|entry| step_of(entry.path())).collect(), remarks)
}

/// Pictures by step: as many as fit, spread over the steps, the first and the last among them. Others
/// are told in the remarks.
pub fn gallery_of(title: &str, mut files: Vec<(u64, PathBuf)>, remarks: &mut Vec<String>) -> Option<Gallery> {
    files.sort();
    // The last one tells how many fit.
    let (last_step, path) = files.last()?;
    let last = read_picture(path);
    let fitting = last.as_ref().map_or(MOST_PICTURES, |picture| MOST_BYTES / picture.len().max(1));
    let mut picked = evenly_spaced(files.len(), fitting.clamp(2, MOST_PICTURES));
    picked.pop();
    let earlier = picked.into_iter().filter_map(|i| Some((files[i].0, read_picture(&files[i].1)?)));
    let pictures: Vec<(u64, Picture)> = earlier.chain(last.map(|last| (*last_step, last))).collect();
    let skipped = files.len() - pictures.len();
    if skipped > 0 {
        remarks.push(format!(
            "{title}: pictures that cannot be read, or are left out so that the page stays small: {skipped}"
        ));
    }
    (!pictures.is_empty()).then(|| Gallery { title: title.to_owned(), pictures })
}

/// A picture, smaller if it is large. None if it cannot be read.
fn read_picture(path: &Path) -> Option<Picture> {
    let bytes = std::fs::read(path).ok()?;
    let bytes = shrink(&bytes).unwrap_or(bytes);
    Some(Picture::new("image/png", &bytes))
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
    fn galleries_stay_small_and_keep_first_and_last() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("previews")).unwrap();
        for step in [100, 200, 300] {
            // Noise, which does not compress.
            let noise = |x: u32, y: u32| image::Rgb([(x * 7919 + y * 104_729 + step) as u8; 3]);
            let picture = image::RgbImage::from_fn(1200, 100, noise);
            picture.save(folder.path().join(format!("previews/step-{step:08}.png"))).unwrap();
        }
        let mut remarks = Vec::new();
        let gallery = previews(folder.path(), &mut remarks).unwrap();
        let steps: Vec<u64> = gallery.pictures.iter().map(|picture| picture.0).collect();
        assert_eq!((steps, remarks.len()), (vec![100, 200, 300], 0));
        for step in 4..200 {
            let copy = folder.path().join(format!("previews/step-{:08}.png", 100 * step));
            std::fs::hard_link(folder.path().join("previews/step-00000300.png"), copy).unwrap();
        }
        let gallery = previews(folder.path(), &mut remarks).unwrap();
        let bytes: usize = gallery.pictures.iter().map(|(_, picture)| picture.len()).sum();
        let steps: Vec<u64> = gallery.pictures.iter().map(|picture| picture.0).collect();
        assert!(steps.len() <= MOST_PICTURES && bytes <= MOST_BYTES, "{steps:?} {bytes}");
        assert_eq!((steps[0], steps[steps.len() - 1]), (100, 19_900));
        assert!(remarks[0].contains("left out"), "{remarks:?}");
    }
}
