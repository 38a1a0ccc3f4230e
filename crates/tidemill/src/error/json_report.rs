//! An error as the JSON object that `--json` prints.

use serde_json::{Value, json};

use super::types::Error;

impl Error {
    /// The error as one JSON object: message, exit code and, for mistakes in a run file, position
    /// and help.
    pub fn to_json(&self) -> Value {
        let mut error = json!({ "message": self.to_string() });
        if let Self::RunFile(mistake) = self {
            if let Some(position) = mistake.position() {
                error["file"] = position.file.clone().into();
                error["line"] = position.line.into();
                error["column"] = position.column.into();
            }
            error["help"] = mistake.help().into();
        }
        json!({ "error": error, "exit_code": self.exit_code() })
    }
}
