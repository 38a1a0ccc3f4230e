//! A run file that means the same wherever it is read: by workers with another working directory, or on other machines.

use std::path::Path;

use tidemill_data::OneOrMany;
use toml::Table;

use super::{Run, RunFile};
use crate::error::{Error, Result};

impl Run {
    /// The run file in full: defaults written out, and paths absolute.
    ///
    /// # Errors
    /// If a number is too large for TOML, or the working directory is gone.
    pub fn portable(&self) -> Result<Table> {
        let mut file = RunFile { output: self.output(), ..self.file.clone() };
        let blocked = [&mut file.filter.blocklist, &mut file.filter.opt_out];
        let lists = blocked.into_iter().flat_map(|list| {
            [&mut list.keys, &mut list.urls, &mut list.domains, &mut list.sha256, &mut list.phash]
        });
        for uris in lists.chain([&mut file.source.uri]) {
            match uris {
                OneOrMany::One(uri) => make_absolute(uri)?,
                OneOrMany::Many(uris) => uris.iter_mut().try_for_each(make_absolute)?,
            }
        }
        let datasets = file.train.mix.iter_mut().filter_map(|entry| entry.dataset.as_mut());
        let validation = file.train.validation.as_mut().and_then(|validation| validation.dataset.as_mut());
        for uri in datasets.chain(validation).chain([&mut file.output]).chain(&mut file.checkpoint.uri) {
            make_absolute(uri)?;
        }
        for path in [Some(&mut file.models.path), file.train.stream.cache.as_mut()].into_iter().flatten() {
            *path = absolute(path)?.into();
        }
        Table::try_from(&file).map_err(|e| Error::Arguments(format!("the run file cannot be handed on: {e}")))
    }

    /// A run of what [`portable`](Self::portable) gave.
    ///
    /// # Errors
    /// If another version gave it.
    pub fn of_portable(table: &Table) -> Result<Self> {
        let settings: Vec<String> = table.iter().map(|(key, value)| format!("{key} = {value}")).collect();
        Self::parse("the run file", "", &settings)
    }
}

fn make_absolute(uri: &mut String) -> Result<()> {
    if !uri.contains("://") {
        *uri = absolute(Path::new(uri))?;
    }
    Ok(())
}

/// An empty path says that there is none, and stays so.
fn absolute(path: &Path) -> Result<String> {
    if path.as_os_str().is_empty() {
        return Ok(String::new());
    }
    let absolute = std::path::absolute(path).map_err(|e| Error::Missing {
        what: "the working directory".into(),
        problem: e.to_string(),
        hint: "start from a folder that exists".into(),
    })?;
    Ok(absolute.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn portable(text: &str, overrides: &[&str]) -> RunFile {
        let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
        let run = Run::parse("run.toml", text, &overrides).unwrap();
        let again = Run::of_portable(&run.portable().unwrap()).unwrap();
        assert_eq!(again.portable().unwrap(), run.portable().unwrap());
        again.file
    }

    #[test]
    fn paths_are_absolute_and_all_else_stays() {
        let text = include_str!("../../../../examples/quickstart.toml");
        let engine = "engine={ kind = \"ray\", encode = { workers = \"1..3\" }, memory = \"3 GiB\" }";
        let overrides = ["output=\"here\"", engine];
        let here = std::env::current_dir().unwrap();
        let file = portable(text, &overrides);
        let mut expected = Run::parse("run.toml", text, &overrides.map(String::from)).unwrap().file;
        assert_eq!(file.output, here.join("here").display().to_string());
        assert_eq!(file.models.path, here.join(&expected.models.path));
        expected.output.clone_from(&file.output);
        expected.models.path.clone_from(&file.models.path);
        expected.source.uri =
            OneOrMany::One(here.join(&expected.source.uri.as_slice()[0]).display().to_string());
        assert_eq!(file, expected);
    }

    #[test]
    fn uris_stay_and_defaults_are_written_out() {
        let text = "name = \"n\"\n[source]\nuri = [\"s3://b/*.parquet\", \"a.parquet\"]\n[checkpoint]\nuri = \"gs://c\"";
        let (file, here) = (portable(text, &[]), std::env::current_dir().unwrap());
        let at = |path: &str| here.join(path).display().to_string();
        assert_eq!(file.source.uri, OneOrMany::Many(vec!["s3://b/*.parquet".into(), at("a.parquet")]));
        assert_eq!(file.checkpoint.uri.as_deref(), Some("gs://c"));
        assert_eq!((file.output, file.models.path.as_os_str()), (at("runs/n"), "".as_ref()));
    }
}
