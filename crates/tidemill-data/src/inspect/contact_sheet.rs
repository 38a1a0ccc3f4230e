//! A contact sheet: random rows of a source as they go into training, with the pixels and captions
//! that `Prepare` returns. On request also rejected rows, in full and with a red frame.

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

/// Greatest side of a tile in pixels.
const TILE_SIDE: u32 = 128;
/// Width of the frame of a rejected row, in pixels.
const FRAME_WIDTH: u32 = 4;
const RED: Rgb<u8> = Rgb([200, 30, 30]);
const WHITE: Rgb<u8> = Rgb([255, 255, 255]);

/// Rows of a batch that are prepared; the others are not decoded.
const ROWS_PER_BATCH: usize = 16;

/// Number of units that the tiles are spread over, if there are as many.
const MAX_UNITS: usize = 8;

/// A unit that can only be read from its start is sampled first: one batch in this many is looked
/// at.
const BATCH_STRIDE: u64 = 4;

/// Options of a contact sheet.
#[derive(Debug, Clone, Copy)]
pub struct SheetOptions {
    /// Number of tiles.
    pub tiles: usize,
    /// Seed of the random choice.
    pub seed: u64,
    /// Include rejected rows.
    pub rejected: bool,
}

/// A tile of the sheet.
#[derive(Debug, Clone)]
pub struct Tile {
    /// A square image.
    pub image: RgbImage,
    /// The caption. For a rejected row, the reason comes first, in brackets.
    pub caption: String,
}

/// Chooses random rows and draws their tiles: a few random units, a few random batches of each, and
/// of these the rows that a hash of seed and sample id puts first. Few rows are read and fewer are
/// decoded, however large the source is. `image` is the name of the image column.
///
/// # Errors
/// If the source cannot be read, or if no row that was looked at is kept.
pub fn sample_tiles(
    source: &dyn Source,
    prepare: &Prepare,
    image: &str,
    options: SheetOptions,
) -> Result<Vec<Tile>> {
    let mut units = source.units()?;
    units.sort_by_key(|unit| random_order(options.seed, unit_hash(unit)));
    let tiles_per_unit = options.tiles.div_ceil(units.len().clamp(1, MAX_UNITS));
    let tiles_per_batch = options.tiles.div_ceil(MAX_UNITS);
    let mut found = Vec::new();
    for unit in units {
        let enough = (found.len() + tiles_per_unit).min(options.tiles);
        // Tiles beyond the share of a batch, for units of few batches.
        let mut surplus = Vec::new();
        for batch in shuffled_batches(source, &unit, options.seed) {
            let chosen = choose_rows(&batch?, options.seed)?;
            let mut tiles = Vec::new();
            add_tiles(&chosen, &prepare.run(&chosen)?, image, options, &mut tiles)?;
            surplus.extend(tiles.split_off(tiles_per_batch.min(tiles.len())));
            found.extend(tiles);
            if found.len() >= enough {
                break;
            }
        }
        found.extend(surplus);
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

/// The batches of a unit in random order, each read when it is needed. A unit that cannot be split
/// is read from its start: first the batches that a draw picks, then the others.
fn shuffled_batches(
    source: &dyn Source,
    unit: &InputUnit,
    seed: u64,
) -> impl Iterator<Item = Result<RecordBatch>> {
    let mut stretches = source.split_unit(unit);
    stretches.sort_by_key(|stretch| random_order(seed, unit_hash(stretch)));
    let hash = unit_hash(unit);
    let is_picked =
        move |batch: u64| random_order(seed, hash.wrapping_add(batch)).is_multiple_of(BATCH_STRIDE);
    // Passes over the batches: the picked ones, then the others; or all at once.
    let passes: &[Option<bool>] = if stretches.len() == 1 { &[Some(true), Some(false)] } else { &[None] };
    passes.iter().flat_map(move |pass| {
        let read = stretches.clone().into_iter().flat_map(|stretch| read_range(source, &stretch));
        let is_in_pass = move |batch: u64| pass.is_none_or(|pass| is_picked(batch) == pass);
        (0..).zip(read).filter(move |(batch, _)| is_in_pass(*batch)).map(|(_, batch)| batch)
    })
}

/// The batches of a range, or the error of opening it.
fn read_range(source: &dyn Source, stretch: &InputUnit) -> Batches {
    source.read(stretch).unwrap_or_else(|error| Box::new(std::iter::once(Err(error))))
}

fn unit_hash(unit: &InputUnit) -> u64 {
    crate::source::sample_id::sample_id(&unit.file.identity, unit.span.range().start)
}

fn random_order(seed: u64, id: u64) -> u64 {
    XxHash3_64::oneshot_with_seed(seed, &id.to_le_bytes())
}

/// The rows of a batch that come first by their draw, in that order.
fn choose_rows(batch: &RecordBatch, seed: u64) -> Result<RecordBatch> {
    let ids = sample_ids(batch);
    let mut rows: Vec<u64> = (0..batch.num_rows() as u64).collect();
    rows.sort_by_key(|row| random_order(seed, ids.map_or(*row, |ids| ids[*row as usize])));
    rows.truncate(ROWS_PER_BATCH);
    Ok(take_record_batch(batch, &UInt64Array::from(rows))?)
}

/// Draws the tiles of prepared rows and adds them to `tiles`.
fn add_tiles(
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
                tiles.extend(draw_kept(prepared, row).map(|image| Tile { image, caption: caption.into() }))
            }
            REJECTED if options.rejected => {
                // A rejected row may also be damaged; then it has no tile.
                let drawn = draw_rejected(batch, image, row)?;
                let caption = format!("[{}] {caption}", reason.value(row));
                tiles.extend(drawn.ok().map(|image| Tile { image, caption }));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Draws the pixels of the largest resolution that the row reaches on a square with their longer
/// side, scaled down to a tile if larger.
fn draw_kept(prepared: &RecordBatch, row: usize) -> Option<RgbImage> {
    let schema = prepared.schema();
    let names = schema.fields().iter().map(|field| field.name().as_str());
    let resolutions = names.filter_map(|name| name.strip_prefix("pixels_")?.parse::<u32>().ok());
    let is_reached =
        |r: &u32| prepared.column_by_name(&format!("pixels_{r}")).is_some_and(|c| c.is_valid(row));
    let resolution = resolutions.filter(is_reached).max()?;
    let planes = prepared.column_by_name(&format!("pixels_{resolution}"))?.as_binary_opt::<i64>()?.value(row);
    let size = prepared.column_by_name(&format!("size_{resolution}"))?.as_fixed_size_list_opt()?.value(row);
    let &[width, height] = size.as_primitive_opt::<UInt32Type>()?.values().as_ref() else { return None };
    let plane = planes.len() / 3;
    let pixels = (0..plane).flat_map(|i| [planes[i], planes[plane + i], planes[2 * plane + i]]).collect();
    let image = RgbImage::from_raw(width, height, pixels)?;
    let side = width.max(height);
    let mut square = RgbImage::from_pixel(side, side, WHITE);
    overlay(&mut square, &image, i64::from((side - width) / 2), i64::from((side - height) / 2));
    Some(if side > TILE_SIDE { resize(&square, TILE_SIDE, TILE_SIDE, FilterType::Triangle) } else { square })
}

/// Draws the full image within a red frame.
fn draw_rejected(batch: &RecordBatch, image: &str, row: usize) -> Result<Result<RgbImage, RowError>> {
    let request = ColumnRequest { file: "the batch", column: image, config_key: "source.columns.image" };
    let Some(column) = batch.column_by_name(image) else {
        return Ok(Err(RowError::Missing("image")));
    };
    let images = ImageColumn::new(column, request)?;
    Ok(images.get(row).and_then(decode::decode).map(|decoded| {
        let inside = TILE_SIDE - 2 * FRAME_WIDTH;
        let scale = f64::from(inside) / f64::from(decoded.width.max(decoded.height));
        let side = |length: u32| ((f64::from(length) * scale).round() as u32).clamp(1, inside);
        let (width, height) = (side(decoded.width), side(decoded.height));
        let mut tile = RgbImage::from_pixel(TILE_SIDE, TILE_SIDE, RED);
        overlay(
            &mut tile,
            &RgbImage::from_pixel(inside, inside, WHITE),
            FRAME_WIDTH.into(),
            FRAME_WIDTH.into(),
        );
        let whole = RgbImage::from_raw(decoded.width, decoded.height, decoded.pixels).unwrap_or_default();
        let small = resize(&whole, width, height, FilterType::Triangle);
        let at = |length: u32| i64::from(FRAME_WIDTH + (inside - length) / 2);
        overlay(&mut tile, &small, at(width), at(height));
        tile
    }))
}
