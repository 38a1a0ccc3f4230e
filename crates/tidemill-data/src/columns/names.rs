//! Names of columns.

/// Columns that `Prepare` writes; a carried column may not bear one of these names.
pub(crate) const OUTPUT_COLUMNS: [&str; 15] = [
    "sample_id",
    "key",
    "caption",
    "caption_source",
    "width",
    "height",
    "format",
    "icc",
    "status",
    "reason",
    "source_row",
    "token_ids",
    "flipped",
    "sha256",
    "phash",
];

/// How the columns that `Prepare` writes for each resolution begin; the resolution follows.
const OUTPUT_PREFIXES: [&str; 3] = ["pixels_", "size_", "crop_"];

/// Whether `Prepare` writes a column of this name.
pub(crate) fn is_output(name: &str) -> bool {
    let resolution = OUTPUT_PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix));
    OUTPUT_COLUMNS.contains(&name) || resolution.is_some_and(|resolution| resolution.parse::<u32>().is_ok())
}

/// An optional column (Utf8) of batches: why the source could not make a whole row, as `kind: detail`, null where it
/// could. `Prepare` quarantines a row with such a text before it looks at anything else of it.
pub const SOURCE_ERROR: &str = "source_error";
