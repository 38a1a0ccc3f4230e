//! Arrow IPC through the source: footer or messages, record batches and dictionaries. The bytes are written to a file,
//! because sources read files.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;
use tidemill_data::OneOrMany;
use tidemill_data::{CaptionConfig, FilterConfig, Format, SourceConfig, source};

static FOLDER: LazyLock<TempDir> = LazyLock::new(|| TempDir::new().expect("a temporary folder"));

fuzz_target!(init: tidemill_fuzz::allow_caught_panics(), |bytes: &[u8]| {
    let path = FOLDER.path().join("a.arrow");
    std::fs::write(&path, bytes).expect("room for a file");
    let uri = OneOrMany::One(path.display().to_string());
    let config = SourceConfig { format: Format::Arrow, uri, ..SourceConfig::default() };
    let Ok(source) = source::open(&config, &FilterConfig::default(), &CaptionConfig::default()) else { return };
    for unit in source.units().unwrap_or_default() {
        // A unit ends at its first error.
        let _ = source.read(&unit).map(|batches| batches.take_while(Result::is_ok).count());
    }
});
