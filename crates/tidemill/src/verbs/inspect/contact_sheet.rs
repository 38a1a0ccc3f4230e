//! The contact sheet of a run's source: random rows as `Prepare` gives them, with their captions.

use std::path::Path;

use serde_json::{Value, json};
use tidemill_data::inspect::contact_sheet::{SheetOptions, sample_tiles};
use tidemill_train::image_grid as grid;

use super::command::Args;
use crate::error::{Error, Result};
use crate::progress::Reporter;
use crate::run_file::Run;

const COLUMNS: u32 = 8;
const ROWS: u32 = 6;

/// Draws the sheet into the file and gives its path.
pub fn draw(run: &Run, path: &Path, args: &Args, reporter: &Reporter) -> Result<Value> {
    run.validate_source()?;
    let source = run.source()?;
    let prepare = run.prepare()?;
    let options = SheetOptions { tiles: (COLUMNS * ROWS) as usize, seed: args.seed, rejected: args.rejected };
    let tiles = sample_tiles(&*source, &prepare, &run.file.source.columns.image, options)?;
    let (pictures, captions): (Vec<_>, Vec<_>) =
        tiles.into_iter().map(|tile| (tile.picture, tile.caption)).unzip();
    let unwritable = |source| Error::Write { path: path.display().to_string(), source };
    let sheet = grid::encode_png(&grid::make_grid(&pictures, &captions, COLUMNS));
    let sheet = sheet.map_err(|e| unwritable(std::io::Error::other(e)))?;
    std::fs::write(path, sheet).map_err(unwritable)?;
    reporter.report(format!("{} rows of the source in {}", pictures.len(), path.display()));
    Ok(json!(path))
}
