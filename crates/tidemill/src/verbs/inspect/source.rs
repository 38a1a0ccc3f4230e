//! What pairs lie at a path or URI: their format, columns and first rows, and the run file's section
//! `[source]` that reads them.

use std::path::PathBuf;

use serde_json::{Map, Value, json};
use tidemill_data::Format;
use tidemill_data::inspect::FirstRow;
use tidemill_data::source::discover::{Discovered, discover};

use super::parquet::summarize_parquet;
use crate::error::Result;
use crate::progress::Reporter;
use crate::verbs::init::{RunFileText, add_source, describe, read_rows};

/// Most characters of a key or caption that are shown.
const SHOWN_CHARACTERS: usize = 70;

/// Shows pairs.
///
/// # Errors
/// If there are no pairs, or they cannot be read.
pub fn inspect_source(path: &str, reporter: &Reporter) -> Result<Value> {
    let found = discover(path)?;
    let is_readable = found.roles.has_image && found.roles.has_caption;
    let (rows, total) = if is_readable { read_rows(&found)? } else { Default::default() };
    reporter.report(format!("{path}: {}", describe(&found, total)));
    let role_of = |field: &str| found.roles.columns.by_role().find(|(_, name)| *name == field);
    for field in &found.fields {
        let role = role_of(&field.name).map(|(role, _)| format!("    {role}")).unwrap_or_default();
        reporter.report(format!("  {}: {}{role}", field.name, field.type_name));
    }
    let columns: Map<String, Value> =
        found.fields.iter().map(|field| (field.name.clone(), field.type_name.clone().into())).collect();
    let mut result = json!({
        "verb": "inspect", "kind": found.container.format, "path": path,
        "files": found.container.files.len(), "bytes": found.container.bytes(), "rows": total,
        "columns": columns, "first_rows": rows.first,
    });
    if let Some(files) = local_parquet_files(&found) {
        let summary = summarize_parquet(&files, &found.roles.columns, reporter)?;
        result["rows"] = json!(summary.rows);
        result["row_groups"] = json!(summary.row_groups);
        result["histograms"] = json!(summary.histograms);
    }
    if is_readable {
        report_first_rows(&rows.first, reporter);
        let mut file = RunFileText::default();
        add_source(&mut file, &found);
        reporter.report(format!("the run file should have:\n{}", file.text.trim_end()));
        result["source"] = json!(found.config);
    } else {
        let missing = if found.roles.has_image { "captions" } else { "images" };
        reporter.report(format!("no column looks like the {missing}; name it in source.columns"));
    }
    Ok(result)
}

/// The files, if they are Parquet on this machine.
fn local_parquet_files(found: &Discovered) -> Option<Vec<PathBuf>> {
    let files = &found.container.files;
    let is_local = files.iter().all(|(uri, _)| !uri.contains("://"));
    (found.container.format == Format::Parquet && is_local)
        .then(|| files.iter().map(|(uri, _)| PathBuf::from(uri)).collect())
}

fn report_first_rows(rows: &[FirstRow], reporter: &Reporter) {
    reporter.report(format!("the first {} rows:", rows.len()));
    for FirstRow { key, image, caption } in rows {
        let caption =
            caption.as_deref().map_or("no caption".to_owned(), |text| format!("\"{}\"", shorten(text)));
        reporter.report(format!("  {}: {}, {caption}", shorten(key), shorten(image)));
    }
}

fn shorten(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(SHOWN_CHARACTERS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}
