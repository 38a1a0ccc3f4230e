//! A first run file for the pairs that lie at a path or URI.

use tidemill_data::inspect::FirstRows;
use tidemill_data::source::discover::{Discovered, discover};

use super::run_file_text::RunFileText;
use super::source_section::{add_source, describe, read_rows};
use crate::error::{Error, Result};

/// Sides to train at: the largest that most images have.
const SIDES: [u32; 4] = [512, 256, 128, 64];

/// The share of images that must be as large as the resolution.
const LARGE_ENOUGH: f64 = 0.75;

const STEPS: u64 = 100_000;

/// The end of the run file.
const PLAN: &str = r#"
# For `tidemill plan`, which knows the prices of these node types:
# [plan]
# trainers = { node = "p4de.24xlarge", nodes = 1 }
# encoders = { node = "g5.2xlarge" }
"#;

/// Looks at the pairs and proposes a run with these models.
///
/// # Errors
/// If there are no pairs, or they cannot be read.
pub fn propose(path: &str, models: Option<&str>) -> Result<RunFileText> {
    let found = discover(path)?;
    let mut file = RunFileText::default();
    if !(found.roles.has_image && found.roles.has_caption) {
        let missing = if found.roles.has_image { "captions" } else { "images" };
        let names: Vec<&str> = found.fields.iter().map(|field| field.name.as_str()).collect();
        let message = format!(
            "{path}: none of the fields {} looks like the {missing}; write source.columns by hand",
            names.join(", ")
        );
        return Err(Error::Arguments(message));
    }
    let (rows, total) = read_rows(&found)?;
    let resolutions = choose_resolutions(&rows);
    add_head(&mut file, path, &found, total);
    add_source(&mut file, &found);
    add_filter(&mut file, &rows, resolutions[0], found.roles.has_status);
    file.section("prepare");
    file.set("resolutions", format_args!("{resolutions:?}"));
    add_models(&mut file, models);
    file.section("train");
    file.comment("precision = \"bf16\"    on a GPU");
    add_phases(&mut file, &resolutions, total);
    file.text.push_str(PLAN);
    Ok(file)
}

/// The resolutions, ascending. A run at 512 pixels starts with 256, which is cheaper.
fn choose_resolutions(rows: &FirstRows) -> Vec<u32> {
    let side = SIDES.into_iter().find(|side| rows.share_of_at_least(*side) >= LARGE_ENOUGH);
    match side.unwrap_or(SIDES[SIDES.len() - 1]) {
        512 => vec![256, 512],
        side => vec![side],
    }
}

fn add_head(file: &mut RunFileText, path: &str, found: &Discovered, rows: Option<u64>) {
    let name = path.trim_end_matches('/').rsplit('/').find(|part| is_name(part)).unwrap_or("mine");
    let name = name.split('.').next().unwrap_or(name);
    file.comment(&format!("A proposal of `tidemill init {path}`: {}.", describe(found, rows)));
    file.comment("`tidemill explain KEY` says what a key means; `tidemill plan` says what the run takes.");
    file.set_text("name", name);
    file.set_text("output", &format!("runs/{name}"));
    file.remark(format!("found {}", describe(found, rows)));
}

fn is_name(part: &str) -> bool {
    !part.is_empty() && part != "." && !part.contains(['*', '?', '[', ':'])
}

fn add_filter(file: &mut RunFileText, rows: &FirstRows, min_side: u32, has_status: bool) {
    file.section("filter");
    let sides = &rows.short_sides;
    if let (Some(least), Some(most)) = (sides.first(), sides.last()) {
        let median = sides[sides.len() / 2];
        let seen =
            format!("short sides of {} images: {least} to {most} pixels, median {median}", sides.len());
        file.comment(&format!("The {seen}."));
        file.remark(seen);
    }
    let share = 100.0 * rows.share_of_at_least(min_side);
    file.comment(&format!("{share:.0} % of them are at least this large."));
    file.set("min_side", min_side);
    if has_status {
        file.comment("img2dataset lists images that it could not get, too.");
        file.set_text("where", "status = 'success'");
    }
    for (kind, count) in &rows.unreadable {
        file.remark(format!("{count} of {} rows have no readable image: {kind}", rows.rows));
    }
    if rows.without_caption > 0 {
        file.remark(format!("{} of {} rows have no caption", rows.without_caption, rows.rows));
    }
}

fn add_models(file: &mut RunFileText, models: Option<&str>) {
    file.section("models");
    file.comment("A diffusers folder, or one of the Hugging Face Hub: hf://user/name");
    file.set_text("path", models.unwrap_or("models/sd2"));
    if models.is_none() {
        file.remark("set models.path to a diffusers folder, or to one of the Hub: hf://user/name");
    }
}

fn add_phases(file: &mut RunFileText, resolutions: &[u32], rows: Option<u64>) {
    let global_batch = tidemill_train::TrainConfig::default().global_batch;
    file.set("global_batch", global_batch);
    for resolution in resolutions {
        file.section("[train.phase]");
        file.set("resolution", resolution);
        if let Some(rows) = rows.filter(|rows| *rows > 0) {
            let epochs = STEPS as f64 * global_batch as f64 / rows as f64;
            file.comment(&format!("{epochs:.1} epochs of {rows} rows."));
        }
        file.set("steps", STEPS);
    }
}
