//! `[track]` of the run file: which trackers follow training.

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

/// `[track]`: the experiment trackers that follow training.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrackConfig {
    /// Arguments of `wandb.init`, such as project, name and mode.
    pub wandb: Option<Table>,
    /// `[track.mlflow]`: where MLflow keeps the run.
    pub mlflow: Option<MlflowConfig>,
}

/// `[track.mlflow]`: where MLflow keeps the run. What is not given follows MLflow's environment
/// variables.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MlflowConfig {
    /// URL of the server, URI of a database, or a folder.
    pub tracking_uri: Option<String>,
    /// Name of the experiment. It is created if there is none.
    pub experiment: Option<String>,
    /// Name of the run in MLflow; that of the run file if it is not given.
    pub run_name: Option<String>,
}

impl TrackConfig {
    /// Whether any tracker is to follow training.
    pub fn is_set(&self) -> bool {
        self.wandb.is_some() || self.mlflow.is_some()
    }

    /// Refuses secrets. The run file lies in the run's folder, and reports show it.
    ///
    /// # Errors
    /// What to do instead. The message does not contain the secret.
    pub fn validate(&self) -> std::result::Result<(), String> {
        let has_key = |wandb: &Table| {
            let settings = wandb.get("settings").and_then(Value::as_table);
            [Some(wandb), settings].into_iter().flatten().any(|table| table.contains_key("api_key"))
        };
        if self.wandb.as_ref().is_some_and(has_key) {
            let message = "keep the API key out of the run file: run `wandb login`, or set WANDB_API_KEY";
            return Err(format!("track.wandb: {message}"));
        }
        let uri = self.mlflow.as_ref().and_then(|mlflow| mlflow.tracking_uri.as_deref());
        if uri.is_some_and(has_credentials) {
            let message = "keep user and password out of the run file: set MLFLOW_TRACKING_URI instead";
            return Err(format!("track.mlflow.tracking_uri: {message}"));
        }
        Ok(())
    }

    /// The paths of local folders, which are relative to the working directory.
    pub fn local_paths(&mut self) -> impl Iterator<Item = &mut String> {
        let folder = self.wandb.as_mut().and_then(|wandb| match wandb.get_mut("dir") {
            Some(Value::String(folder)) => Some(folder),
            _ => None,
        });
        let store = self.mlflow.as_mut().and_then(|mlflow| mlflow.tracking_uri.as_mut());
        folder.into_iter().chain(store.filter(|uri| is_folder(uri)))
    }
}

/// Whether a URI has a user name or a password, as in `https://user:password@host`.
fn has_credentials(uri: &str) -> bool {
    let rest = uri.split_once("://").map_or("", |(_, rest)| rest);
    rest.split(['/', '?', '#']).next().is_some_and(|authority| authority.contains('@'))
}

/// Whether MLflow takes a tracking URI for the path of a folder.
fn is_folder(uri: &str) -> bool {
    !uri.contains(':') && !["databricks", "databricks-uc", "uc"].contains(&uri)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> TrackConfig {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn secrets_are_refused_and_not_repeated() {
        for text in [
            "wandb = { api_key = \"secret\" }",
            "wandb = { settings = { api_key = \"secret\" } }",
            "mlflow = { tracking_uri = \"https://user:secret@host/path\" }",
            "mlflow = { tracking_uri = \"postgresql://user:secret@host?a=b\" }",
        ] {
            let message = parse(text).validate().unwrap_err();
            assert!(message.starts_with("track.") && !message.contains("secret"), "{message}");
        }
        for text in [
            "wandb = { project = \"p\", settings = { silent = true } }",
            "mlflow = { tracking_uri = \"https://host/a@b\" }",
            "mlflow = { tracking_uri = \"mlruns\" }",
        ] {
            parse(text).validate().unwrap();
        }
    }

    #[test]
    fn folders_are_paths_and_uris_are_not() {
        let mut track = parse("wandb = { dir = \"w\" }\nmlflow = { tracking_uri = \"mlruns\" }");
        assert_eq!(track.local_paths().collect::<Vec<_>>(), ["w", "mlruns"]);
        for uri in ["http://host", "sqlite:///a.db", "file:mlruns", "databricks"] {
            let mut track = parse(&format!("mlflow = {{ tracking_uri = \"{uri}\" }}"));
            assert_eq!(track.local_paths().count(), 0, "{uri}");
        }
    }
}
