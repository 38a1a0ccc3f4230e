//! A mistake in a run file: what is wrong, where it is, and what to do.

use std::ops::Range;

use miette::{Diagnostic, NamedSource, SourceSpan};

/// A position in the run file or in the `--set` overrides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextPosition {
    /// The run file's path, or `--set`.
    pub file: String,
    /// The line, from 1. For overrides: the number of the override, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
}

/// A mistake in a run file. miette prints it with the line that contains the mistake.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[error("{}{message}", position_prefix(position))]
pub struct RunFileError {
    message: String,
    position: Option<TextPosition>,
    #[source_code]
    source_code: NamedSource<String>,
    #[label("here")]
    span: Option<SourceSpan>,
    #[help]
    help: Option<String>,
}

impl RunFileError {
    /// Creates an error about the bytes `span` of `text`, which has the name `name`.
    pub(super) fn new(
        name: &str,
        text: &str,
        message: String,
        span: Option<Range<usize>>,
        position: Option<TextPosition>,
    ) -> Self {
        // The span of a table covers all its lines. Only the first line is marked.
        let first_line = |span: Range<usize>| {
            let length = text.get(span.clone()).and_then(|text| text.lines().next()).map_or(0, str::len);
            (span.start, length).into()
        };
        Self {
            message,
            position,
            source_code: NamedSource::new(name, text.to_string()),
            span: span.map(first_line),
            help: None,
        }
    }

    /// Adds what the user can do.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// The position of the mistake, if it has one.
    pub fn position(&self) -> Option<&TextPosition> {
        self.position.as_ref()
    }

    /// What the user can do.
    pub fn help(&self) -> Option<&str> {
        self.help.as_deref()
    }
}

/// `file:line:column: `, or nothing if the position is unknown.
fn position_prefix(position: &Option<TextPosition>) -> String {
    match position {
        Some(TextPosition { file, line, column }) => format!("{file}:{line}:{column}: "),
        None => String::new(),
    }
}
