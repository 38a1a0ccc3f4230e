//! The TOML text of a run file together with its `--set` overrides, as one tree in which every key and value
//! remembers where it was written. Errors found later, by serde or by a check, are pointed at the right place.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{RunFileError, explain};

/// A run file that is valid TOML. `text` is the file followed by one line per override; spans index into it.
#[derive(Debug, Clone)]
pub struct Document {
    name: String,
    text: String,
    /// Bytes of `text` that are the file.
    file: usize,
    /// Each override, with blanks in front that give its spans their place in `text`.
    overrides: Vec<String>,
}

/// Where a span lies, for people: line and column count from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The file, or `--set`.
    pub file: String,
    /// Line in the file, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
}

impl Document {
    /// Parses `text`, which came from the file `name`, and applies the overrides, each of the form `section.key=value`.
    ///
    /// # Errors
    /// Text that is no TOML, or an override without `=`.
    pub fn parse(name: &str, text: &str, overrides: &[String]) -> Result<Self, RunFileError> {
        let text = if text.ends_with('\n') { text.into() } else { format!("{text}\n") };
        let mut document = Self { name: name.into(), file: text.len(), text, overrides: Vec::new() };
        document.tree()?;
        for text in overrides {
            document.set(text)?;
        }
        Ok(document)
    }

    /// Adds one override. A value that is no TOML is taken as a string, so that shells need no nested quotes.
    fn set(&mut self, text: &str) -> Result<(), RunFileError> {
        let start = self.text.len();
        let Some((key, value)) = text.split_once('=').map(|(key, value)| (key.trim(), value.trim())) else {
            self.overrides.push(" ".repeat(start));
            self.text += text;
            let error = self.error(format!("`{text}` sets nothing"), Some(start..self.text.len()));
            return Err(error.with_help("write --set section.key=value"));
        };
        let as_is = format!("{key} = {value}");
        let line = match DeTable::parse(&as_is) {
            Ok(_) => as_is,
            Err(_) => format!("{key} = {}", toml::Value::from(value)),
        };
        self.overrides.push(" ".repeat(start) + &line);
        self.text = format!("{}{line}\n", self.text);
        self.tree().map(drop)
    }

    /// The file's tree with the overrides put over it.
    fn tree(&self) -> Result<DeTable<'_>, RunFileError> {
        let parse = |text| DeTable::parse(text).map_err(|e| self.error(e.message(), e.span()));
        let mut root = parse(&self.text[..self.file])?.into_inner();
        for text in &self.overrides {
            merge(&mut root, parse(text)?.into_inner())
                .map_err(|NoEntry { message, span }| self.error(message, Some(span)))?;
        }
        Ok(root)
    }

    /// Deserialises the whole document.
    ///
    /// # Errors
    /// An unknown key, a wrong type or a missing key, with its place and the nearest valid name.
    pub fn read<T: serde::de::DeserializeOwned>(&self) -> Result<T, RunFileError> {
        let root = Spanned::new(0..self.text.len(), self.tree()?);
        T::deserialize(toml::Deserializer::from(root)).map_err(|e| {
            let key = e.span().and_then(|span| self.key_at(&span)).unwrap_or_default();
            let (message, help) = explain(&key, e.message());
            let error = self.error(message, e.span());
            match help {
                Some(help) => error.with_help(help),
                None => error,
            }
        })
    }

    /// An error about the value of a dotted key, pointing at it, or at the nearest table around it that exists.
    pub fn error_at(&self, key: &str, message: impl Into<String>) -> RunFileError {
        self.error(format!("{key}: {}", message.into()), self.find(key).map(|found| found.span))
    }

    /// Whether the dotted key is written in the file or an override.
    pub fn has(&self, key: &str) -> bool {
        self.find(key).is_some_and(|found| found.whole)
    }

    fn error(&self, message: impl Into<String>, span: Option<Range<usize>>) -> RunFileError {
        let place = span.as_ref().map(|span| self.place(span.start));
        RunFileError::new(&self.name, &self.text, message.into(), span, place)
    }

    fn place(&self, at: usize) -> Place {
        let in_file = at < self.file || self.overrides.is_empty();
        let before = &self.text[if in_file { 0 } else { self.file }..at.min(self.text.len())];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |l| l.chars().count()) + 1;
        Place { file: if in_file { self.name.clone() } else { "--set".into() }, line, column }
    }

    fn find(&self, key: &str) -> Option<Found> {
        find(&self.tree().ok()?, key)
    }

    /// The dotted key whose name or value has exactly this span.
    fn key_at(&self, span: &Range<usize>) -> Option<String> {
        key_in_table(&self.tree().ok()?, span, "")
    }
}

/// What [`find`] found of a dotted key.
struct Found {
    span: Range<usize>,
    whole: bool,
}

/// Follows a dotted key as far as it exists; numbers index arrays.
fn find(table: &DeTable<'_>, key: &str) -> Option<Found> {
    let (first, rest) = key.split_once('.').map_or((key, None), |(first, rest)| (first, Some(rest)));
    let (name, value) = table.get_key_value(first)?;
    let Some(rest) = rest else { return Some(Found { span: value.span(), whole: true }) };
    find_in_value(value.get_ref(), rest).or(Some(Found { span: name.span(), whole: false }))
}

fn find_in_value(value: &DeValue<'_>, key: &str) -> Option<Found> {
    match value {
        DeValue::Table(table) => find(table, key),
        DeValue::Array(items) => {
            let (index, rest) = key.split_once('.').map_or((key, None), |(index, rest)| (index, Some(rest)));
            let item = items.get(index.parse::<usize>().ok()?)?;
            match rest {
                None => Some(Found { span: item.span(), whole: true }),
                Some(rest) => find_in_value(item.get_ref(), rest)
                    .or_else(|| Some(Found { span: item.span(), whole: false })),
            }
        }
        _ => None,
    }
}

fn key_in_table(table: &DeTable<'_>, span: &Range<usize>, prefix: &str) -> Option<String> {
    table.iter().find_map(|(name, value)| {
        let key = format!("{prefix}{}", name.get_ref());
        if name.span() == *span { Some(key) } else { key_in_value(value, span, key) }
    })
}

fn key_in_value(value: &Spanned<DeValue<'_>>, span: &Range<usize>, key: String) -> Option<String> {
    let deeper = match value.get_ref() {
        DeValue::Table(table) => key_in_table(table, span, &format!("{key}.")),
        DeValue::Array(items) => {
            items.iter().enumerate().find_map(|(i, item)| key_in_value(item, span, format!("{key}.{i}")))
        }
        _ => None,
    };
    deeper.or_else(|| (value.span() == *span).then_some(key))
}

/// An override of an array's entry that is not there.
struct NoEntry {
    message: String,
    span: Range<usize>,
}

/// Puts `from` over `into`: tables are merged, `phase.0.steps` reaches into an array, all else is replaced.
fn merge<'i>(into: &mut DeTable<'i>, from: DeTable<'i>) -> Result<(), NoEntry> {
    for (key, value) in from {
        match into.get_mut(key.get_ref().as_ref()) {
            Some(old) => merge_value(old, value)?,
            None => drop(into.insert(key, value)),
        }
    }
    Ok(())
}

fn merge_value<'i>(into: &mut Spanned<DeValue<'i>>, from: Spanned<DeValue<'i>>) -> Result<(), NoEntry> {
    let span = from.span();
    match (into.get_mut(), from.into_inner()) {
        (DeValue::Table(old), DeValue::Table(new)) => merge(old, new)?,
        (DeValue::Array(old), DeValue::Table(new)) if are_indices(&new) => {
            let entries = old.len();
            for (index, value) in new {
                let old = index.get_ref().parse().ok().and_then(|i: usize| old.get_mut(i));
                let message =
                    || format!("there is no entry {}: there are {entries}, from 0 on", index.get_ref());
                let old = old.ok_or_else(|| NoEntry { message: message(), span: index.span() })?;
                merge_value(old, value)?;
            }
        }
        (_, new) => *into = Spanned::new(span, new),
    }
    Ok(())
}

fn are_indices(table: &DeTable<'_>) -> bool {
    table.keys().all(|key| key.get_ref().parse::<usize>().is_ok())
}
