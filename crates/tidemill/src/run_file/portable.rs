//! A portable run file: it means the same wherever it is read, by workers with another working
//! directory or on other machines.

use std::path::Path;

use tidemill_data::OneOrMany;
use toml::Table;

use super::run::Run;
use super::sections::RunFile;
use crate::error::{Error, Result};
use crate::evaluation::config::{HELDOUT_CAPTIONS, StatisticsFiles};
use crate::evaluation::models::EvalModels;

impl Run {
    /// The run file in full: defaults are written out, and paths are absolute.
    ///
    /// # Errors
    /// If a number is too large for TOML, or the working directory does not exist any more.
    pub fn to_portable(&self) -> Result<Table> {
        let mut file = RunFile { output: self.output(), ..self.file.clone() };
        let blocklists = [&mut file.filter.blocklist, &mut file.filter.opt_out];
        let list_files = blocklists.into_iter().flat_map(|list| {
            [&mut list.keys, &mut list.urls, &mut list.domains, &mut list.sha256, &mut list.phash]
        });
        for uris in list_files.chain([&mut file.source.uri]) {
            *uris = absolute_uris(uris)?;
        }
        let datasets = file.train.mix.iter_mut().filter_map(|entry| entry.dataset.as_mut());
        let validation = file.train.validation.as_mut().and_then(|validation| validation.dataset.as_mut());
        let eval = &mut file.eval;
        if let Some(source) = &mut eval.reference.source {
            source.uri = absolute_uris(&source.uri)?;
        }
        let prompts = eval.prompts.iter_mut().filter(|prompts| *prompts != HELDOUT_CAPTIONS);
        let best = file.checkpoint.keep_best.iter_mut().filter_map(|best| best.uri.as_mut());
        let StatisticsFiles { inception, clip, dinov2 } = &mut eval.reference.statistics;
        let statistics = [inception, clip, dinov2].into_iter().flatten();
        let evaluations = eval.uri.iter_mut().chain(prompts).chain(best).chain(statistics);
        let outputs = [&mut file.output].into_iter().chain(&mut file.checkpoint.uri).chain(evaluations);
        for uri in datasets.chain(validation).chain(outputs).chain(file.track.local_paths()) {
            make_absolute(uri)?;
        }
        let EvalModels { inception, clip, dinov2, pickscore, hpsv2 } = &mut eval.models;
        let judges = [inception, clip, dinov2, pickscore, hpsv2].into_iter().flatten();
        let paths = [Some(&mut file.models.path), file.train.stream.cache.as_mut()].into_iter().flatten();
        let heads = file.score.heads.values_mut().map(|head| &mut head.path);
        for path in paths.chain(judges).chain([&mut file.score.path]).chain(heads) {
            *path = absolute_path(path)?.into();
        }
        Table::try_from(&file)
            .map_err(|e| Error::Arguments(format!("the run file cannot be sent to workers: {e}")))
    }

    /// The name of the run file in the run's own folder.
    pub const SAVED_NAME: &'static str = "resolved.toml";

    /// Writes the run file in full into the run's folder, where reports find it.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save(&self) -> Result<()> {
        let folder = std::path::PathBuf::from(self.output());
        let path = folder.join(Self::SAVED_NAME);
        let text = toml::to_string(&self.to_portable()?).map_err(|e| Error::Arguments(e.to_string()))?;
        let written = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&path, text));
        written.map_err(|source| Error::Write { path: path.display().to_string(), source })
    }

    /// Opens a run from the table that [`to_portable`](Self::to_portable) returned.
    ///
    /// # Errors
    /// If another version of Tidemill wrote the table.
    pub fn from_portable(table: &Table) -> Result<Self> {
        let settings: Vec<String> = table.iter().map(|(key, value)| format!("{key} = {value}")).collect();
        Self::parse("the run file", "", &settings)
    }
}

/// Paths as absolute ones. URIs stay as they are.
fn absolute_uris(uris: &OneOrMany) -> Result<OneOrMany> {
    let mut uris = uris.clone();
    match &mut uris {
        OneOrMany::One(uri) => make_absolute(uri)?,
        OneOrMany::Many(uris) => uris.iter_mut().try_for_each(make_absolute)?,
    }
    Ok(uris)
}

/// Makes a path absolute. URIs stay as they are.
fn make_absolute(uri: &mut String) -> Result<()> {
    *uri = absolute_path(Path::new(uri))?;
    Ok(())
}

/// The path with the working directory in front. An empty path means "not set" and stays empty; URIs
/// stay as they are.
fn absolute_path(path: &Path) -> Result<String> {
    let text = path.to_string_lossy();
    if text.is_empty() || text.contains("://") {
        return Ok(text.into_owned());
    }
    let absolute = std::path::absolute(path).map_err(|e| Error::Missing {
        what: "the working directory".into(),
        problem: e.to_string(),
        hint: "start the command in a folder that exists".into(),
    })?;
    Ok(absolute.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(text: &str, overrides: &[&str]) -> RunFile {
        let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
        let run = Run::parse("run.toml", text, &overrides).unwrap();
        let reopened = Run::from_portable(&run.to_portable().unwrap()).unwrap();
        assert_eq!(reopened.to_portable().unwrap(), run.to_portable().unwrap());
        reopened.file
    }

    #[test]
    fn portable_run_file_has_absolute_paths_and_no_other_change() {
        let text = include_str!("../../../../examples/quickstart.toml");
        let engine = "engine={ kind = \"ray\", encode = { workers = \"1..3\" }, memory = \"3 GiB\" }";
        let overrides = ["output=\"here\"", engine];
        let folder = std::env::current_dir().unwrap();
        let file = round_trip(text, &overrides);
        let mut expected = Run::parse("run.toml", text, &overrides.map(String::from)).unwrap().file;
        assert_eq!(file.output, folder.join("here").display().to_string());
        assert_eq!(file.models.path, folder.join(&expected.models.path));
        expected.output.clone_from(&file.output);
        expected.models.path.clone_from(&file.models.path);
        let judge = expected.eval.models.dinov2.as_ref().unwrap();
        expected.eval.models.dinov2 = Some(folder.join(judge));
        expected.source.uri =
            OneOrMany::One(folder.join(&expected.source.uri.as_slice()[0]).display().to_string());
        assert_eq!(file, expected);
    }

    #[test]
    fn portable_run_file_keeps_uris_and_contains_defaults() {
        let text = "name = \"n\"\n[source]\nuri = [\"s3://b/*.parquet\", \"a.parquet\"]\n[checkpoint]\nuri = \"gs://c\"\n[models]\npath = \"hf://a/b\"";
        let (file, folder) = (round_trip(text, &[]), std::env::current_dir().unwrap());
        let absolute = |path: &str| folder.join(path).display().to_string();
        assert_eq!(file.source.uri, OneOrMany::Many(vec!["s3://b/*.parquet".into(), absolute("a.parquet")]));
        assert_eq!(file.checkpoint.uri.as_deref(), Some("gs://c"));
        assert_eq!((file.output, file.models.path), (absolute("runs/n"), "hf://a/b".into()));
        assert_eq!(round_trip("", &[]).models.path.as_os_str(), "");
    }
}
