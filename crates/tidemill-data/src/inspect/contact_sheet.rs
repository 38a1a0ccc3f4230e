//! Random rows of a source as they go into training: the pixels that `Prepare` gives, with their captions. On request the
//! rejected rows too, whole and framed.

use arrow::array::{Array, AsArray, RecordBatch, UInt64Array};
use arrow::compute::take_record_batch;
use arrow::datatypes::UInt32Type;
use image::imageops::{FilterType, overlay, resize};
use image::{Rgb, RgbImage};
use twox_hash::XxHash3_64;

use crate::columns::prepared::sample_ids;
use crate::columns::status::{KEPT, REJECTED};
use crate::columns::typed::{ColumnRequest, ImageColumn};
use crate::decode;
use crate::error::{Error, Result, RowError};
use crate::prepare::Prepare;
use crate::source::pair_source::{Batches, Source};
use crate::source::units::InputUnit;

/// Greatest side of a tile in pixels, and a rejected row's frame.
const TILE: u32 = 128;
const FRAME: u32 = 4;
const RED: Rgb<u8> = Rgb([200, 30, 30]);
const PAPER: Rgb<u8> = Rgb([255, 255, 255]);

/// Rows of one batch that are tried; the others of it are not decoded.
const TRIED: usize = 16;

/// Batches that a sheet is spread over, of as many units, if there are so many.
const PLACES: usize = 8;

/// Of a unit that can only be read from its beginning, one batch in so many is looked at, at first.
const PASSED: u64 = 4;

/// What to show.
#[derive(Debug, Clone, Copy)]
pub struct SheetOptions {
    /// Tiles.
    pub tiles: usize,
    /// Seed of the choice.
    pub seed: u64,
    /// Show rejected rows too.
    pub rejected: bool,
}

/// A picture for the sheet.
#[derive(Debug, Clone)]
pub struct Tile {
    /// A square.
    pub picture: RgbImage,
    /// The caption; of a rejected row the reason comes first, in brackets.
    pub caption: String,
}

/// Tiles of random rows: of a few random units some random batches, and of each of these the rows that a hash of seed and
/// sample id puts first. Few rows are read, and fewer decoded, however large the source is. The image column is `image`.
///
/// # Errors
/// If the source cannot be read or has no kept rows where it was looked at.
pub fn tiles(
    source: &dyn Source,
    prepare: &Prepare,
    image: &str,
    options: SheetOptions,
) -> Result<Vec<Tile>> {
    let mut units = source.units()?;
    units.sort_by_key(|unit| draw(options.seed, unit_hash(unit)));
    let quota = options.tiles.div_ceil(units.len().clamp(1, PLACES));
    let share = options.tiles.div_ceil(PLACES);
    let mut found = Vec::new();
    for unit in units {
        let enough = (found.len() + quota).min(options.tiles);
        // What a batch has beyond its share, for units of few batches.
        let mut spare = Vec::new();
        for batch in batches(source, &unit, options.seed) {
            let chosen = first_by_draw(&batch?, options.seed)?;
            let mut tiles = Vec::new();
            add(&chosen, &prepare.run(&chosen)?, image, options, &mut tiles)?;
            spare.extend(tiles.split_off(share.min(tiles.len())));
            found.extend(tiles);
            if found.len() >= enough {
                break;
            }
        }
        found.extend(spare);
        found.truncate(enough);
        if found.len() == options.tiles {
            break;
        }
    }
    if found.is_empty() {
        let files = source.files().iter().map(|file| file.uri.as_str()).collect::<Vec<_>>().join(", ");
        return Err(Error::Read { file: files, problem: "no row of it passes the filters".into() });
    }
    Ok(found)
}

/// The batches of a unit in the order in which they are looked at, each read when it is its turn: where the unit can be cut,
/// in the order of a draw; elsewhere those that a draw picks, and behind them the others.
fn batches(source: &dyn Source, unit: &InputUnit, seed: u64) -> impl Iterator<Item = Result<RecordBatch>> {
    let mut stretches = source.stretches(unit);
    stretches.sort_by_key(|stretch| draw(seed, unit_hash(stretch)));
    let hash = unit_hash(unit);
    let picked = move |batch: u64| draw(seed, hash.wrapping_add(batch)).is_multiple_of(PASSED);
    // Whether the picked ones come, or the others, or either.
    let turns: &[Option<bool>] = if stretches.len() == 1 { &[Some(true), Some(false)] } else { &[None] };
    turns.iter().flat_map(move |turn| {
        let read = stretches.clone().into_iter().flat_map(|stretch| read(source, &stretch));
        let theirs = move |batch: u64| turn.is_none_or(|turn| picked(batch) == turn);
        (0..).zip(read).filter(move |(batch, _)| theirs(*batch)).map(|(_, batch)| batch)
    })
}

/// The batches of a stretch; if it cannot be opened, its error.
fn read(source: &dyn Source, stretch: &InputUnit) -> Batches {
    source.read(stretch).unwrap_or_else(|error| Box::new(std::iter::once(Err(error))))
}

fn unit_hash(unit: &InputUnit) -> u64 {
    crate::source::sample_id::sample_id(&unit.file.identity, unit.span.range().start)
}

fn draw(seed: u64, id: u64) -> u64 {
    XxHash3_64::oneshot_with_seed(seed, &id.to_le_bytes())
}

/// The rows of a batch that come first by their draw, in the order of the draws.
fn first_by_draw(batch: &RecordBatch, seed: u64) -> Result<RecordBatch> {
    let ids = sample_ids(batch);
    let mut rows: Vec<u64> = (0..batch.num_rows() as u64).collect();
    rows.sort_by_key(|row| draw(seed, ids.map_or(*row, |ids| ids[*row as usize])));
    rows.truncate(TRIED);
    Ok(take_record_batch(batch, &UInt64Array::from(rows))?)
}

/// Adds the tiles of prepared rows.
fn add(
    batch: &RecordBatch,
    prepared: &RecordBatch,
    image: &str,
    options: SheetOptions,
    tiles: &mut Vec<Tile>,
) -> Result<()> {
    let (status, reason) = (prepared["status"].as_string::<i32>(), prepared["reason"].as_string::<i32>());
    let captions = prepared["caption"].as_string::<i32>();
    for row in 0..prepared.num_rows() {
        let caption = if captions.is_valid(row) { captions.value(row) } else { "" };
        match status.value(row) {
            KEPT => {
                tiles.extend(kept(prepared, row).map(|picture| Tile { picture, caption: caption.into() }))
            }
            REJECTED if options.rejected => {
                // A refused row may be damaged as well; then there is nothing to show.
                let picture = rejected(batch, image, row)?;
                let caption = format!("[{}] {caption}", reason.value(row));
                tiles.extend(picture.ok().map(|picture| Tile { picture, caption }));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The pixels of the largest resolution that the row reaches, on a square of their longer side, made smaller if that is
/// more than a tile.
fn kept(prepared: &RecordBatch, row: usize) -> Option<RgbImage> {
    let schema = prepared.schema();
    let names = schema.fields().iter().map(|field| field.name().as_str());
    let resolutions = names.filter_map(|name| name.strip_prefix("pixels_")?.parse::<u32>().ok());
    let there = |r: &u32| prepared.column_by_name(&format!("pixels_{r}")).is_some_and(|c| c.is_valid(row));
    let resolution = resolutions.filter(there).max()?;
    let planes = prepared.column_by_name(&format!("pixels_{resolution}"))?.as_binary_opt::<i64>()?.value(row);
    let size = prepared.column_by_name(&format!("size_{resolution}"))?.as_fixed_size_list_opt()?.value(row);
    let &[width, height] = size.as_primitive_opt::<UInt32Type>()?.values().as_ref() else { return None };
    let plane = planes.len() / 3;
    let pixels = (0..plane).flat_map(|i| [planes[i], planes[plane + i], planes[2 * plane + i]]).collect();
    let picture = RgbImage::from_raw(width, height, pixels)?;
    let side = width.max(height);
    let mut square = RgbImage::from_pixel(side, side, PAPER);
    overlay(&mut square, &picture, i64::from((side - width) / 2), i64::from((side - height) / 2));
    Some(if side > TILE { resize(&square, TILE, TILE, FilterType::Triangle) } else { square })
}

/// The whole picture within a red frame.
fn rejected(batch: &RecordBatch, image: &str, row: usize) -> Result<Result<RgbImage, RowError>> {
    let request = ColumnRequest { file: "the batch", column: image, config_key: "source.columns.image" };
    let Some(column) = batch.column_by_name(image) else {
        return Ok(Err(RowError::Missing("image")));
    };
    let images = ImageColumn::new(column, request)?;
    Ok(images.get(row).and_then(decode::decode).map(|picture| {
        let inside = TILE - 2 * FRAME;
        let scale = f64::from(inside) / f64::from(picture.width.max(picture.height));
        let side = |length: u32| ((f64::from(length) * scale).round() as u32).clamp(1, inside);
        let (width, height) = (side(picture.width), side(picture.height));
        let mut tile = RgbImage::from_pixel(TILE, TILE, RED);
        overlay(&mut tile, &RgbImage::from_pixel(inside, inside, PAPER), FRAME.into(), FRAME.into());
        let whole = RgbImage::from_raw(picture.width, picture.height, picture.pixels).unwrap_or_default();
        let small = resize(&whole, width, height, FilterType::Triangle);
        let at = |length: u32| i64::from(FRAME + (inside - length) / 2);
        overlay(&mut tile, &small, at(width), at(height));
        tile
    }))
}
