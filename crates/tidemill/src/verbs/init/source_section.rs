//! The run file's section `[source]` for pairs that were found, and what they are.

use tidemill_data::inspect::FirstRows;
use tidemill_data::source::discover::Discovered;
use tidemill_data::source::{self, CsvConfig};
use tidemill_data::{CaptionConfig, FilterConfig, Format, OneOrMany};

use super::run_file_text::{RunFileText, toml_text};
use crate::error::Result;

/// Rows whose images and captions are looked at.
const SAMPLED_ROWS: usize = 256;

/// Files whose rows are counted. Of more files, only the first is opened.
const COUNTED_FILES: usize = 64;

/// The first rows, and the number of all rows. That is `None` if only reading all of them would tell, and an
/// estimate by size if there are many files.
///
/// # Errors
/// If a file cannot be read.
pub fn read_rows(found: &Discovered) -> Result<(FirstRows, Option<u64>)> {
    let container = &found.container;
    let has_many_files = container.files.len() > COUNTED_FILES;
    let mut config = found.config.clone();
    if has_many_files && config.format != Format::Images {
        config.uri = OneOrMany::One(container.first().uri);
    }
    let source = source::open(&config, &FilterConfig::default(), &CaptionConfig::default())?;
    let units = source.units()?;
    let rows = FirstRows::read(&*source, &units, &config.columns, SAMPLED_ROWS)?;
    let counted = units.iter().map(|unit| unit.span.rows()).sum();
    let share_of_first = container.first().size as f64 / container.bytes().max(1) as f64;
    let estimate = || Some((found.first_rows? as f64 / share_of_first).round() as u64);
    Ok((rows, if has_many_files { estimate() } else { counted }))
}

/// Format, files, rows and size in one line.
pub fn describe(found: &Discovered, rows: Option<u64>) -> String {
    let container = &found.container;
    let rows = match rows {
        Some(rows) if container.files.len() > COUNTED_FILES => format!(", about {rows} rows"),
        Some(rows) => format!(", {rows} rows"),
        None => String::new(),
    };
    let (format, files) = (container.format.name(), container.files.len());
    format!("{format}, {files} file(s){rows}, {:.1} MB", container.bytes() as f64 / 1e6)
}

/// Adds the section, with remarks on what was guessed.
pub fn add_source(file: &mut RunFileText, found: &Discovered) {
    file.section("source");
    file.set_text("format", found.container.format.name());
    file.set_text("uri", &found.container.uri);
    if found.config.csv != CsvConfig::default() {
        let CsvConfig { delimiter, quote, columns } = &found.config.csv;
        let (delimiter, quote) = (toml_text(delimiter), toml_text(quote));
        file.set(
            "csv",
            format_args!("{{ delimiter = {delimiter}, quote = {quote}, columns = {columns:?} }}"),
        );
    }
    let columns = found.roles.columns.by_role();
    let columns: Vec<String> = columns.map(|(role, name)| format!("{role} = {}", toml_text(name))).collect();
    file.set("columns", format_args!("{{ {} }}", columns.join(", ")));
    file.remark(format!("columns: {}", columns.join(", ")));
    if !found.roles.other_captions.is_empty() {
        let others = found.roles.other_captions.join(", ");
        file.comment(&format!(
            "These may be captions, too: {others}. A list of columns takes one at random."
        ));
    }
    if !found.roles.numbers.is_empty() {
        let numbers = found.roles.numbers.join(", ");
        file.comment(&format!("Numbers, such as scores to filter by ([filter] score.NAME.min): {numbers}."));
    }
}
