//! The keys of a step's objects, below the folder of the evaluations, and the parts of URIs.

/// The folder of a step's blocks and pictures.
pub fn step_folder(step: u64) -> String {
    format!("step-{step:08}")
}

/// The key of a step's record.
pub fn record_key(step: u64) -> String {
    format!("{}.json", step_folder(step))
}

/// The key of a step's table.
pub fn table_key(step: u64) -> String {
    format!("{}.parquet", step_folder(step))
}

/// The step of a record; `None` for other objects.
pub fn parse_recorded_step(key: &str) -> Option<u64> {
    key.strip_prefix("step-")?.strip_suffix(".json")?.parse().ok()
}

/// The folder and the name of a file, of which a path or URI is given.
pub fn split_uri(uri: &str) -> (&str, &str) {
    match uri.rsplit_once('/') {
        Some(("", name)) => ("/", name),
        Some(parts) => parts,
        None => (".", uri),
    }
}
