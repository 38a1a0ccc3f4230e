//! The text of a run file, line by line.

use std::fmt::{Display, Write};

/// A run file, and what the user should know of it.
#[derive(Debug, Default)]
pub struct RunFileText {
    /// The run file.
    pub text: String,
    /// What is left to do, and what differs.
    pub remarks: Vec<String>,
}

impl RunFileText {
    /// Adds a comment.
    pub fn comment(&mut self, text: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "# {text}");
    }

    /// Starts a section.
    pub fn section(&mut self, name: &str) {
        let _ = writeln!(self.text, "\n[{name}]");
    }

    /// Sets a key to TOML.
    pub fn set(&mut self, key: &str, value: impl Display) {
        let _ = writeln!(self.text, "{key} = {value}");
    }

    /// Sets a key to a string.
    pub fn set_text(&mut self, key: &str, value: &str) {
        self.set(key, toml_text(value));
    }

    /// Adds a remark.
    pub fn remark(&mut self, text: impl Into<String>) {
        self.remarks.push(text.into());
    }
}

/// A string as TOML.
pub fn toml_text(value: &str) -> String {
    toml::Value::from(value).to_string()
}

/// A float as TOML writes it, so that a whole number is not an integer.
pub fn float(value: f64) -> toml::Value {
    toml::Value::Float(value)
}
