//! The contact sheet of a run's source: random rows as `Prepare` makes them, with their captions.

use std::path::Path;

use serde_json::{Value, json};
use tidemill_data::inspect::contact_sheet::{SheetOptions, sample_tiles};
use tidemill_train::image_grid;

use super::arguments::Args;
use crate::error::{Error, Result};
use crate::progress::Reporter;
use crate::run_file::Run;

/// The size of the sheet in images.
const COLUMNS: u32 = 8;
const ROWS: u32 = 6;

/// Draws the sheet as a PNG file and returns its path.
///
/// # Errors
/// If the source cannot be read, or the file cannot be written.
pub fn write_contact_sheet(run: &Run, path: &Path, args: &Args, reporter: &Reporter) -> Result<Value> {
    run.validate_source()?;
    let source = run.source()?;
    let prepare = run.prepare_without_scores()?;
    let options = SheetOptions { tiles: (COLUMNS * ROWS) as usize, seed: args.seed, rejected: args.rejected };
    let tiles = sample_tiles(&*source, &prepare, &run.file.source.columns.image, options)?;
    let (images, captions): (Vec<_>, Vec<_>) =
        tiles.into_iter().map(|tile| (tile.image, tile.caption)).unzip();
    let write_error = |source| Error::Write { path: path.display().to_string(), source };
    let png = image_grid::encode_png(&image_grid::make_grid(&images, &captions, COLUMNS));
    let png = png.map_err(|e| write_error(std::io::Error::other(e)))?;
    std::fs::write(path, png).map_err(write_error)?;
    reporter.report(format!("{} rows of the source in {}", images.len(), path.display()));
    Ok(json!(path))
}
