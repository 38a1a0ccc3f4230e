//! The TOML text of a run file together with its `--set` overrides, as one tree in which every key
//! and value knows its position. Errors that are found later, by serde or by a check, point at the
//! right key.

use std::ops::Range;

use toml::Spanned;
use toml::de::DeTable;

use super::error::{RunFileError, TextPosition};
use super::key_positions::{find_key, key_at_span};
use super::key_suggestions::rewrite_serde_message;
use super::set_overrides::{MissingArrayEntry, merge_tables, override_to_toml};
use crate::error::Error;

/// A run file that is valid TOML.
#[derive(Debug, Clone)]
pub struct Document {
    name: String,
    /// The run file, followed by one line for each override. All spans index into it.
    text: String,
    /// The length of the run file in `text`, in bytes.
    file_length: usize,
    /// The TOML line of each override. Blanks in front of the line give its spans their position in
    /// `text`.
    overrides: Vec<String>,
}

impl Document {
    /// Parses `text`, the content of the file `name`, and applies the overrides
    /// (`section.key=value`).
    ///
    /// # Errors
    /// If the text is not TOML, or an override has no `=`.
    pub fn parse(name: &str, text: &str, overrides: &[String]) -> Result<Self, RunFileError> {
        let text = if text.ends_with('\n') { text.into() } else { format!("{text}\n") };
        let mut document = Self { name: name.into(), file_length: text.len(), text, overrides: Vec::new() };
        document.parse_tree()?;
        for text in overrides {
            document.add_override(text)?;
        }
        Ok(document)
    }

    fn add_override(&mut self, text: &str) -> Result<(), RunFileError> {
        let start = self.text.len();
        let Some(line) = override_to_toml(text) else {
            self.overrides.push(" ".repeat(start));
            self.text += text;
            let error = self.error(format!("`{text}` sets nothing"), Some(start..self.text.len()));
            return Err(error.with_help("write --set section.key=value"));
        };
        self.overrides.push(" ".repeat(start) + &line);
        self.text = format!("{}{line}\n", self.text);
        self.parse_tree().map(drop)
    }

    /// Parses the file and merges the overrides into its tree.
    fn parse_tree(&self) -> Result<DeTable<'_>, RunFileError> {
        let parse = |text| DeTable::parse(text).map_err(|e| self.error(e.message(), e.span()));
        let mut root = parse(&self.text[..self.file_length])?.into_inner();
        for text in &self.overrides {
            merge_tables(&mut root, parse(text)?.into_inner())
                .map_err(|MissingArrayEntry { message, span }| self.error(message, Some(span)))?;
        }
        Ok(root)
    }

    /// Deserialises the whole document.
    ///
    /// # Errors
    /// An unknown key, a wrong type or a missing key, with its position and the nearest valid name.
    pub fn deserialize<T: serde::de::DeserializeOwned>(&self) -> Result<T, RunFileError> {
        let root = Spanned::new(0..self.text.len(), self.parse_tree()?);
        T::deserialize(toml::Deserializer::from(root)).map_err(|e| {
            let key = e.span().and_then(|span| key_at_span(&self.parse_tree().ok()?, &span));
            let (message, help) = rewrite_serde_message(&key.unwrap_or_default(), e.message());
            let error = self.error(message, e.span());
            match help {
                Some(help) => error.with_help(help),
                None => error,
            }
        })
    }

    /// Creates an error about the value of a dotted key. It points at the value, or at the nearest
    /// table around it that exists.
    pub fn error_at(&self, key: &str, message: impl Into<String>) -> RunFileError {
        let span = self.parse_tree().ok().and_then(|tree| find_key(&tree, key));
        self.error(format!("{key}: {}", message.into()), span)
    }

    /// [`error_at`](Self::error_at) as the application's error.
    pub fn refuse(&self, key: &str, message: impl Into<String>) -> Error {
        Box::new(self.error_at(key, message)).into()
    }

    /// Adds the position in the run file to another crate's error that is about a key. Returns
    /// other errors unchanged.
    pub fn locate(&self, error: impl Into<Error>) -> Error {
        match error.into() {
            Error::Data(tidemill_data::Error::Config { key, problem }) => self.refuse(&key, problem),
            Error::Store(tidemill_store::Error::Config { key, problem }) => self.refuse(key, problem),
            Error::Train(tidemill_train::Error::Config { key, message }) => self.refuse(&key, message),
            Error::Data(error @ tidemill_data::Error::Uri { .. }) => {
                let message = error.to_string();
                let message = message.strip_prefix("source.uri ").unwrap_or(&message);
                self.refuse("source.uri", message)
            }
            error => error,
        }
    }

    fn error(&self, message: impl Into<String>, span: Option<Range<usize>>) -> RunFileError {
        let position = span.as_ref().map(|span| self.position_of_byte(span.start));
        RunFileError::new(&self.name, &self.text, message.into(), span, position)
    }

    fn position_of_byte(&self, byte: usize) -> TextPosition {
        let is_in_file = byte < self.file_length || self.overrides.is_empty();
        let start = if is_in_file { 0 } else { self.file_length };
        let before = &self.text[start..byte.min(self.text.len())];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |line| line.chars().count()) + 1;
        let file = if is_in_file { self.name.clone() } else { "--set".into() };
        TextPosition { file, line, column }
    }
}
