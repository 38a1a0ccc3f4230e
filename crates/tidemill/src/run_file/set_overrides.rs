//! `--set section.key=value` overrides: an override becomes one line of TOML, whose tree is merged
//! into the run file's tree.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Turns an override into a line of TOML. Returns `None` if there is no `=`. A value that is not
/// TOML is taken as a string, so that shells need no nested quotes.
pub(super) fn override_to_toml(text: &str) -> Option<String> {
    let (key, value) = text.split_once('=').map(|(key, value)| (key.trim(), value.trim()))?;
    let as_written = format!("{key} = {value}");
    Some(match DeTable::parse(&as_written) {
        Ok(_) => as_written,
        Err(_) => format!("{key} = {}", toml::Value::from(value)),
    })
}

/// An override names an array entry that does not exist.
pub(super) struct MissingArrayEntry {
    pub message: String,
    /// The bytes of the index in the override.
    pub span: Range<usize>,
}

/// Merges `from` into `into`: tables are merged, `phase.0.steps` changes an entry of an array,
/// everything else is replaced.
pub(super) fn merge_tables<'i>(into: &mut DeTable<'i>, from: DeTable<'i>) -> Result<(), MissingArrayEntry> {
    for (key, value) in from {
        match into.get_mut(key.get_ref().as_ref()) {
            Some(old) => merge_values(old, value)?,
            None => drop(into.insert(key, value)),
        }
    }
    Ok(())
}

fn merge_values<'i>(
    into: &mut Spanned<DeValue<'i>>,
    from: Spanned<DeValue<'i>>,
) -> Result<(), MissingArrayEntry> {
    let span = from.span();
    match (into.get_mut(), from.into_inner()) {
        (DeValue::Table(old), DeValue::Table(new)) => merge_tables(old, new)?,
        (DeValue::Array(old), DeValue::Table(new)) if has_only_indices(&new) => {
            let length = old.len();
            for (index, value) in new {
                let entry = index.get_ref().parse().ok().and_then(|i: usize| old.get_mut(i));
                let entry = entry.ok_or_else(|| MissingArrayEntry {
                    message: format!("there is no entry {}: there are {length}, from 0 on", index.get_ref()),
                    span: index.span(),
                })?;
                merge_values(entry, value)?;
            }
        }
        (_, new) => *into = Spanned::new(span, new),
    }
    Ok(())
}

fn has_only_indices(table: &DeTable<'_>) -> bool {
    table.keys().all(|key| key.get_ref().parse::<usize>().is_ok())
}
