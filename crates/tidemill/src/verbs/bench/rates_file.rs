//! The file of rates that `tidemill plan --rates` reads: what a GPU does in a second, by its name.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tch::{Cuda, Device};
use tidemill_plan::config::Rates;

use crate::error::{Error, Result};
use crate::verbs::image_files::write_file;

/// The file's content.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RatesFile {
    /// Rates by the GPU's name.
    pub rates: BTreeMap<String, Rates>,
}

/// Adds what was measured of a GPU to the file; other GPUs and other rates stay.
///
/// # Errors
/// If the file has something else, or cannot be written.
pub fn add_to_file(path: &Path, gpu: &str, measured: &Rates) -> Result<()> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(source) => return Err(Error::Write { path: path.display().to_string(), source }),
    };
    let refuse = |problem: String| {
        Error::Arguments(format!("{} is no file of rates: {problem}; name another file", path.display()))
    };
    let mut file: RatesFile = toml::from_str(&text).map_err(|e| refuse(e.to_string()))?;
    let known = file.rates.remove(gpu).unwrap_or_default();
    file.rates.insert(gpu.to_owned(), measured.clone().over(&known));
    let text = toml::to_string(&file).map_err(|e| refuse(e.to_string()))?;
    write_file(path, text.as_bytes())
}

/// Where rates of this machine come from, for readers of a plan.
pub fn source_of(verb: &str, device: Device) -> String {
    let devices = match device {
        Device::Cuda(_) => format!("one of {} GPUs", Cuda::device_count()),
        _ => "the CPU".to_owned(),
    };
    format!("`tidemill {verb}` on {devices}, tidemill {}", env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_later_is_added() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rates.toml");
        let of = |resolution: &str, rate| [(resolution.to_owned(), rate)].into();
        let train = Rates { train: of("256", 7.0), source: "a".into(), ..Rates::default() };
        let encode =
            Rates { encode: of("256", 9.0), prepare: Some(3.0), source: "b".into(), ..Rates::default() };
        add_to_file(&path, "H100-80G", &train).unwrap();
        add_to_file(&path, "H100-80G", &encode).unwrap();
        add_to_file(&path, "cpu", &train).unwrap();
        let file: RatesFile = toml::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let expected = Rates { train: of("256", 7.0), source: "b; else a".into(), ..encode };
        assert_eq!((&file.rates["H100-80G"], &file.rates["cpu"]), (&expected, &train));
        std::fs::write(&path, "name = \"run\"").unwrap();
        let error = add_to_file(&path, "cpu", &train).unwrap_err().to_string();
        assert!(error.contains("no file of rates"), "{error}");
    }
}
