//! Dotted keys and the bytes of the TOML text that contain them. Numbers in a dotted key index
//! arrays, as in `train.phase.0.steps`.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The bytes of a dotted key's value, or of the nearest table around it that exists.
pub(super) fn find_key(table: &DeTable<'_>, key: &str) -> Option<Range<usize>> {
    let (first, rest) = split_first_name(key);
    let (name, value) = table.get_key_value(first)?;
    match rest {
        None => Some(value.span()),
        Some(rest) => find_in_value(value.get_ref(), rest).or(Some(name.span())),
    }
}

fn find_in_value(value: &DeValue<'_>, key: &str) -> Option<Range<usize>> {
    match value {
        DeValue::Table(table) => find_key(table, key),
        DeValue::Array(items) => {
            let (index, rest) = split_first_name(key);
            let item = items.get(index.parse::<usize>().ok()?)?;
            rest.and_then(|rest| find_in_value(item.get_ref(), rest)).or(Some(item.span()))
        }
        _ => None,
    }
}

fn split_first_name(key: &str) -> (&str, Option<&str>) {
    key.split_once('.').map_or((key, None), |(first, rest)| (first, Some(rest)))
}

/// The dotted key whose name or value has exactly this span.
pub(super) fn key_at_span(table: &DeTable<'_>, span: &Range<usize>) -> Option<String> {
    key_in_table(table, span, "")
}

fn key_in_table(table: &DeTable<'_>, span: &Range<usize>, prefix: &str) -> Option<String> {
    table.iter().find_map(|(name, value)| {
        let key = format!("{prefix}{}", name.get_ref());
        if name.span() == *span { Some(key) } else { key_in_value(value, span, key) }
    })
}

fn key_in_value(value: &Spanned<DeValue<'_>>, span: &Range<usize>, key: String) -> Option<String> {
    let nested = match value.get_ref() {
        DeValue::Table(table) => key_in_table(table, span, &format!("{key}.")),
        DeValue::Array(items) => {
            items.iter().enumerate().find_map(|(i, item)| key_in_value(item, span, format!("{key}.{i}")))
        }
        _ => None,
    };
    nested.or_else(|| (value.span() == *span).then_some(key))
}
