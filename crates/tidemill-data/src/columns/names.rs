//! Names of columns that this crate writes itself.

/// Columns that `Prepare` writes. A carried column may not have one of these names.
pub(crate) const OUTPUT_COLUMNS: [&str; 18] = [
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
    "score_pixels",
    "caption_pixels",
    "known_caption",
];

/// Prefixes of the columns that `Prepare` writes for each resolution; the resolution follows.
const RESOLUTION_COLUMN_PREFIXES: [&str; 3] = ["pixels_", "size_", "crop_"];

/// The column with the token ids for a text encoder, counted from 0: `token_ids`, `token_ids_2`, ...
pub fn token_ids_column_name(encoder: usize) -> String {
    if encoder == 0 { "token_ids".to_owned() } else { format!("token_ids_{}", encoder + 1) }
}

/// The text encoder, counted from 0, whose token ids a column holds.
pub fn token_ids_encoder(column: &str) -> Option<usize> {
    let encoder = match column.strip_prefix("token_ids")? {
        "" => 0,
        number => number.strip_prefix('_')?.parse::<usize>().ok()?.checked_sub(1)?,
    };
    (token_ids_column_name(encoder) == column).then_some(encoder)
}

/// True if `Prepare` writes a column of this name.
pub fn is_output_column(name: &str) -> bool {
    OUTPUT_COLUMNS.contains(&name) || is_resolution_column(name) || token_ids_encoder(name).is_some()
}

/// True if `Prepare` writes a column of this name for a resolution.
pub fn is_resolution_column(name: &str) -> bool {
    let resolution = RESOLUTION_COLUMN_PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix));
    resolution.is_some_and(|resolution| resolution.parse::<u32>().is_ok())
}

/// An optional column (Utf8) of source batches: why the source could not read the whole row, as
/// `kind: detail`; null where it could. `Prepare` quarantines a row that has such a text before it
/// looks at anything else.
pub const SOURCE_ERROR: &str = "source_error";
