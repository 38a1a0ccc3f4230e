//! A mistake in a run file: what, where and what to do. Serde's terse messages are rewritten around the dotted key,
//! with the nearest valid name as a suggestion.

use std::ops::Range;

use miette::{Diagnostic, NamedSource, SourceSpan};

use super::document::Place;

/// A refused run file, printed with the line in question.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[error("{}{message}", at(place))]
pub struct RunFileError {
    message: String,
    place: Option<Place>,
    #[source_code]
    source_code: NamedSource<String>,
    #[label("here")]
    span: Option<SourceSpan>,
    #[help]
    help: Option<String>,
}

fn at(place: &Option<Place>) -> String {
    place
        .as_ref()
        .map_or_else(String::new, |Place { file, line, column }| format!("{file}:{line}:{column}: "))
}

impl RunFileError {
    pub(super) fn new(
        name: &str,
        text: &str,
        message: String,
        span: Option<Range<usize>>,
        place: Option<Place>,
    ) -> Self {
        Self {
            message,
            place,
            source_code: NamedSource::new(name, text.to_string()),
            // A table's span covers all its lines; its first one is enough.
            span: span.map(|span| {
                let line = text.get(span.clone()).and_then(|t| t.lines().next()).map_or(0, str::len);
                (span.start, line).into()
            }),
            help: None,
        }
    }

    /// Adds what to do about it.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Where the mistake is, if it is in one place.
    pub fn place(&self) -> Option<&Place> {
        self.place.as_ref()
    }

    /// What to do about it.
    pub fn help(&self) -> Option<&str> {
        self.help.as_deref()
    }
}

/// Rewrites serde's message about `key` (empty if unknown); the second part is help.
pub(super) fn explain(key: &str, message: &str) -> (String, Option<String>) {
    let names: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    let what = if message.starts_with("unknown field") {
        "is not a key of the run file"
    } else if message.starts_with("unknown variant") {
        "is not a possible value"
    } else if let Some(field) = message.strip_prefix("missing field ") {
        let inside = if key.is_empty() { String::new() } else { format!(" in [{key}]") };
        return (format!("the key {field} is missing{inside}"), None);
    } else {
        let key = if key.is_empty() { String::new() } else { format!("{key}: ") };
        return (format!("{key}{message}"), None);
    };
    let Some((wrong, valid)) = names.split_first() else { return (message.to_string(), None) };
    let subject = if message.starts_with("unknown variant") {
        format!("{key}: \"{wrong}\"")
    } else if key.is_empty() {
        format!("`{wrong}`")
    } else {
        format!("`{key}`")
    };
    (format!("{subject} {what}"), Some(suggest(wrong, valid)))
}

fn suggest(wrong: &str, valid: &[&str]) -> String {
    let all = valid.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let closeness = |name: &&str| strsim::jaro_winkler(wrong, name);
    let nearest = valid.iter().copied().max_by(|a, b| closeness(a).total_cmp(&closeness(b)));
    match nearest.filter(|name| closeness(name) > 0.7) {
        Some(nearest) => format!("did you mean `{nearest}`? Known here: {all}"),
        None => format!("known here: {all}"),
    }
}
