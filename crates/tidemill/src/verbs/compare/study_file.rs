//! The study's file, and where its database is.

use std::path::{Path, PathBuf};

use tidemill_compare::study::{SourceConfig, StudyConfig};

use crate::error::{Error, Result};

/// The extension of a study's database.
const DATABASE: &str = "sqlite";

/// The database of a study that the user names by it, by its file, or without extension.
pub fn database_path(study: &Path) -> PathBuf {
    match study.extension().and_then(|extension| extension.to_str()) {
        Some("toml") | None => study.with_extension(DATABASE),
        _ => study.to_owned(),
    }
}

/// A file beside a study's database: its name is the study's, followed by `ending`.
pub fn beside(database: &Path, ending: &str) -> PathBuf {
    let stem = database.file_stem().unwrap_or_default().to_string_lossy();
    database.with_file_name(format!("{stem}{ending}"))
}

/// Reads a study's file.
///
/// # Errors
/// If it cannot be read, or has a mistake.
pub fn read_study(path: &Path) -> Result<StudyConfig> {
    let refuse = |problem: String| Error::Missing {
        what: format!("study {}", path.display()),
        problem,
        hint: "give a TOML file, or --prompts and --source".into(),
    };
    let text = std::fs::read_to_string(path).map_err(|e| refuse(e.to_string()))?;
    // The message of toml shows the line.
    toml::from_str(&text).map_err(|e| refuse(e.to_string()))
}

/// A source from `NAME=PATH`, as on the command line: a run file (`run.toml`, or `run.toml@800` for the
/// checkpoint of step 800), a diffusers folder, or a folder of pictures.
///
/// # Errors
/// If the text has another form, or there is nothing at the path.
pub fn parse_source(text: &str) -> std::result::Result<SourceConfig, String> {
    let (name, path) = text.split_once('=').ok_or("give NAME=PATH")?;
    let (path, step) = match path.rsplit_once('@') {
        Some((path, step)) if path.ends_with(".toml") => {
            (path, Some(step.parse().map_err(|_| format!("`{step}` is no step"))?))
        }
        _ => (path, None),
    };
    let source = SourceConfig { name: name.into(), step, ..SourceConfig::default() };
    let path = PathBuf::from(path);
    Ok(if path.join("unet/config.json").is_file() {
        SourceConfig { diffusers: Some(path), ..source }
    } else if path.is_dir() {
        SourceConfig { folder: Some(path), ..source }
    } else if path.is_file() {
        SourceConfig { run: Some(path), ..source }
    } else {
        return Err(format!("there is nothing at {}", path.display()));
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn study_is_named_by_its_database_its_file_or_its_stem() {
        for name in ["a/study", "a/study.toml", "a/study.sqlite"] {
            assert_eq!(database_path(Path::new(name)), Path::new("a/study.sqlite"));
        }
        assert_eq!(beside(Path::new("a/study.sqlite"), "-results.svg"), Path::new("a/study-results.svg"));
    }

    #[test]
    fn sources_are_told_apart_by_what_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(path("sd/unet")).unwrap();
        std::fs::write(path("sd/unet/config.json"), "{}").unwrap();
        std::fs::create_dir(path("pictures")).unwrap();
        std::fs::write(path("run.toml"), "").unwrap();
        let parse = |name: &str| parse_source(&format!("x={}", path(name).display()));
        assert_eq!(parse("sd").unwrap().diffusers, Some(path("sd")));
        assert_eq!(parse("pictures").unwrap().folder, Some(path("pictures")));
        let run = parse("run.toml@800").unwrap();
        assert_eq!((run.run, run.step), (Some(path("run.toml")), Some(800)));
        for wrong in ["none", "run.toml@x"] {
            parse(wrong).unwrap_err();
        }
        parse_source("run.toml").unwrap_err();
    }
}
