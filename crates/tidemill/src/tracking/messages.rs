//! The lines of JSON between the trainer and the process of the clients
//! (`python/tidemill/tracking.py`).

use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use tidemill_io::redact_text;

use crate::error::{Error, Result};
use crate::run_file::Run;

/// A line from the process.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// The clients have started, and these are their runs.
    Ready(Vec<TrackedRun>),
    /// A client cannot start, and the process ends.
    Error {
        /// The client's key in `[track]`.
        client: String,
        /// What is wrong, and what to do.
        message: String,
    },
    /// Something went wrong, and the process continues.
    Problem(String),
}

/// A run of a client.
#[derive(Debug, Deserialize)]
pub struct TrackedRun {
    /// Where people find it: a page, or a place on this machine.
    pub url: String,
    /// The folder with data that the client has not sent yet.
    pub folder: Option<String>,
}

/// The first line: the configuration, the run's folder, and the settings of the clients.
///
/// # Errors
/// If a number of the run file is too large for TOML.
pub fn start_line(run: &Run) -> Result<String> {
    let mut run_file = run.to_portable()?;
    let track = run_file.remove("track");
    let client = |name: &str| track.as_ref().and_then(|track| track.get(name));
    // Environment variables may be secrets.
    let ray = run_file.get_mut("engine").and_then(|engine| engine.get_mut("ray"));
    if let Some(ray) = ray.and_then(toml::Value::as_table_mut) {
        ray.remove("env");
    }
    let mut config = serde_json::to_value(&run_file).map_err(|e| Error::Arguments(e.to_string()))?;
    redact_urls(&mut config);
    let folder = run_file.get("output");
    let line =
        json!({ "config": config, "folder": folder, "wandb": client("wandb"), "mlflow": client("mlflow") });
    Ok(line.to_string())
}

/// The scalars of a step. JSON has no number that is not finite: those are left out.
pub fn scalars_line(step: u64, scalars: Vec<(String, f64)>) -> String {
    let finite = scalars.into_iter().filter(|(_, value)| value.is_finite());
    let scalars: Map<String, Value> = finite.map(|(tag, value)| (tag, value.into())).collect();
    json!({ "step": step, "scalars": scalars }).to_string()
}

/// A picture of a step.
pub fn picture_line(step: u64, tag: &str, path: &Path) -> String {
    json!({ "step": step, "pictures": { tag: path.display().to_string() } }).to_string()
}

/// The last line: whether training has failed.
pub fn end_line(has_failed: bool) -> String {
    json!({ "failed": has_failed }).to_string()
}

/// Removes secrets from all URLs in the texts of a document.
fn redact_urls(value: &mut Value) {
    match value {
        Value::String(text) => *text = redact_text(text),
        Value::Array(values) => values.iter_mut().for_each(redact_urls),
        Value::Object(values) => values.values_mut().for_each(redact_urls),
        _ => (),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_has_the_configuration_without_secrets() {
        let text = r#"
            name = "n"
            output = "/runs/n"
            source.uri = "https://user:secret@host/a?secret"
            engine = { kind = "ray", ray = { env = { TOKEN = "secret" } } }
            track.wandb.mode = "offline"
        "#;
        let line = start_line(&Run::parse("run.toml", text, &[]).unwrap()).unwrap();
        assert!(!line.contains("secret"), "{line}");
        let line: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(line["config"]["source"]["uri"], "https://host/a?…");
        assert_eq!(line["config"]["train"]["learning_rate"], 1e-4);
        assert_eq!((&line["folder"], &line["mlflow"]), (&json!("/runs/n"), &Value::Null));
        assert_eq!(line["wandb"], json!({ "mode": "offline" }));
        assert_eq!(line["config"].get("track"), None);
    }

    #[test]
    fn steps_are_lines_of_json_with_finite_numbers() {
        let scalars = [("train/loss", 0.5), ("train/grad_norm", f64::NAN), ("a", f64::INFINITY)];
        let scalars = scalars.map(|(tag, value)| (tag.to_owned(), value)).to_vec();
        assert_eq!(scalars_line(7, scalars), r#"{"step":7,"scalars":{"train/loss":0.5}}"#);
        let path = Path::new("runs/a \"b\"/p.png");
        let line = r#"{"step":7,"pictures":{"preview":"runs/a \"b\"/p.png"}}"#;
        assert_eq!(picture_line(7, "preview", path), line);
        assert_eq!(end_line(true), r#"{"failed":true}"#);
    }

    #[test]
    fn answers_are_understood() {
        let parse = |text| serde_json::from_str::<Answer>(text).unwrap();
        let ready = parse(r#"{"ready": [{"url": "https://a", "folder": null}]}"#);
        assert!(matches!(ready, Answer::Ready(runs) if runs[0].url == "https://a"));
        let error = parse(r#"{"error": {"client": "wandb", "message": "m"}}"#);
        assert!(matches!(error, Answer::Error { client, message } if client == "wandb" && message == "m"));
        assert!(matches!(parse(r#"{"problem": "p"}"#), Answer::Problem(text) if text == "p"));
    }
}
