//! The contact sheet of a source: it depends on the seed only, and has kept rows only unless
//! rejected ones are requested.

use std::path::Path;
use std::sync::Arc;

use crate::support;
use crate::support::TOKENIZER;
use arrow::array::{ArrayRef, BinaryArray, RecordBatch, StringArray};
use image::{Rgb, RgbImage};
use parquet::file::properties::WriterProperties;
use tidemill_data::inspect::contact_sheet::{SheetOptions, Tile, sample_tiles};
use tidemill_data::{CaptionConfig, FilterConfig, Prepare, PrepareConfig, SourceConfig};
use tidemill_data::{Format, OneOrMany};

const ROWS: usize = 200;

/// Row i is grey i. Every fourth image is too narrow, and every tenth is not an image.
fn image(i: usize) -> Vec<u8> {
    if i % 10 == 9 {
        return b"no image".to_vec();
    }
    let width = if i.is_multiple_of(4) { 20 } else { 64 };
    support::png(&RgbImage::from_pixel(width, 48, Rgb([i as u8; 3])))
}

fn write(path: &Path) {
    let captions = StringArray::from_iter_values((0..ROWS).map(|i| format!("grey {i}")));
    let batch = RecordBatch::try_from_iter([
        ("image", Arc::new(BinaryArray::from_iter_values((0..ROWS).map(image))) as ArrayRef),
        ("caption", Arc::new(captions)),
    ])
    .unwrap();
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(25)).build();
    std::fs::write(path, support::parquet(&batch, Some(properties))).unwrap();
}

fn grey(tile: &Tile) -> usize {
    let middle = tile.image.width() / 2;
    tile.image.get_pixel(middle, middle)[0].into()
}

fn write_tar(path: &Path) {
    let sample = |i| [(format!("{i}.png"), image(i)), (format!("{i}.txt"), b"grey".to_vec())];
    std::fs::write(path, support::tar((0..ROWS).flat_map(sample))).unwrap();
}

/// The tiles of a source in which narrow images are rejected.
fn sheet(config: &SourceConfig, options: SheetOptions) -> Vec<Tile> {
    let source = support::open(config).unwrap();
    let pixels = PrepareConfig { resolutions: vec![16, 32], ..PrepareConfig::default() };
    let filter = FilterConfig { min_side: Some(32), ..FilterConfig::default() };
    let caption = CaptionConfig::default();
    let prepare = Prepare::new(&pixels, &filter, config, &caption, 0, TOKENIZER.clone()).unwrap();
    sample_tiles(&*source, &prepare, "image", options).unwrap()
}

#[test]
fn contact_sheet_depends_on_the_seed_only() {
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("pairs.parquet"));
    let config = SourceConfig {
        uri: OneOrMany::One(folder.path().display().to_string()),
        rows_per_unit: 50,
        ..SourceConfig::default()
    };
    let draw = |seed, rejected| sheet(&config, SheetOptions { tiles: 24, seed, rejected });

    let drawn = draw(0, false);
    let greys: Vec<usize> = drawn.iter().map(grey).collect();
    assert_eq!(greys.len(), 24);
    for (tile, grey) in drawn.iter().zip(&greys) {
        assert_eq!((tile.image.width(), tile.image.height()), (32, 32), "the largest resolution");
        assert_eq!(tile.caption, format!("grey {grey}"));
        assert!(grey % 4 != 0 && grey % 10 != 9);
    }
    assert!((0..4).all(|unit| greys.iter().any(|grey| grey / 50 == unit)), "{greys:?}");
    assert_eq!(draw(0, false).iter().map(grey).collect::<Vec<_>>(), greys);
    assert_ne!(draw(1, false).iter().map(grey).collect::<Vec<_>>(), greys);

    let both = draw(0, true);
    let rejected: Vec<&Tile> =
        both.iter().filter(|tile| tile.caption.starts_with("[min_side] grey")).collect();
    assert!(!rejected.is_empty() && rejected.len() < both.len());
    assert!(rejected.iter().all(|tile| tile.image.get_pixel(0, 0)[0] > 150 && grey(tile).is_multiple_of(4)));
}

#[test]
fn tiles_come_from_all_parts_of_a_large_unit() {
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("pairs.parquet"));
    write_tar(&folder.path().join("pairs.tar"));
    for (format, name) in [(Format::Parquet, "pairs.parquet"), (Format::WebDataset, "pairs.tar")] {
        let config = SourceConfig {
            format,
            uri: OneOrMany::One(folder.path().join(name).display().to_string()),
            ..SourceConfig::default()
        };
        let of_batches = |rows_per_batch, tiles| {
            let config = SourceConfig { rows_per_batch, ..config.clone() };
            sheet(&config, SheetOptions { tiles, seed: 0, rejected: false })
        };
        assert_eq!(of_batches(256, 8).len(), 8, "{name}: of a single batch, too");
        let sheet = |tiles| of_batches(5, tiles);
        let greys: Vec<usize> = sheet(8).iter().map(grey).collect();
        let quarters = (0..4).filter(|quarter| greys.iter().any(|grey| grey / 50 == *quarter)).count();
        assert!(greys.len() == 8 && quarters >= 3, "{name}: {greys:?}");
        // If all rows are requested, every kept row appears once, though a batch gives only some.
        let mut all: Vec<usize> = sheet(ROWS).iter().map(grey).collect();
        all.sort_unstable();
        assert_eq!(all, (0..ROWS).filter(|i| i % 4 != 0 && i % 10 != 9).collect::<Vec<_>>(), "{name}");
    }
}
