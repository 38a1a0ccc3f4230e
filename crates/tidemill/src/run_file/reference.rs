//! What docs/run-file.md says of each key. The page is part of the program, so both say the same.

use super::key_suggestions::nearest_name;

const PAGE: &str = include_str!("../../../../docs/run-file.md");

/// A section of the run file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// Its dotted name; empty for the keys before the first section.
    pub name: &'static str,
    /// The paragraphs before its keys.
    pub text: String,
    /// Its keys, in the order of the page.
    pub keys: Vec<Key>,
}

/// A key of a section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Its name in the section.
    pub name: &'static str,
    /// The default as TOML, `required` or `none`.
    pub default: String,
    /// What it means.
    pub meaning: String,
}

/// All sections of the page.
pub fn read_sections() -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    // What comes before the first key of the page is about all of them.
    let start = PAGE.find("## Before the first section").unwrap_or_default();
    for line in PAGE[start..].lines() {
        if let Some(title) = line.strip_prefix("## ").or_else(|| line.strip_prefix("### ")) {
            let name = title.trim_matches(|c| matches!(c, '`' | '[' | ']'));
            let name = if title.starts_with('`') { name } else { "" };
            sections.push(Section { name, text: String::new(), keys: Vec::new() });
        } else if let Some(section) = sections.last_mut() {
            section.add_line(line);
        }
    }
    sections
}

impl Section {
    fn add_line(&mut self, line: &'static str) {
        match line.strip_prefix("| `").and_then(parse_row) {
            Some(key) => self.keys.push(key),
            // The head of the table, and notes below it.
            None if line.starts_with('|') || !self.keys.is_empty() => (),
            None => {
                self.text += &strip_links(line);
                self.text.push('\n');
            }
        }
    }

    /// The dotted name of a key.
    pub fn path(&self, key: &Key) -> String {
        if self.name.is_empty() { key.name.to_owned() } else { format!("{}.{}", self.name, key.name) }
    }
}

/// A row of a table of keys, without its first two characters.
fn parse_row(row: &'static str) -> Option<Key> {
    let (name, rest) = row.split_once("` | ")?;
    let (default, meaning) = rest.split_once(" | ")?;
    let meaning = strip_links(meaning.strip_suffix(" |")?).replace("**", "");
    Some(Key { name, default: default.trim_matches('`').to_owned(), meaning })
}

/// `[text](target)` as `text`.
fn strip_links(text: &str) -> String {
    let (mut stripped, mut rest) = (String::new(), text);
    while let Some((before, label, after)) = next_link(rest) {
        stripped += before;
        stripped += label;
        rest = after;
    }
    stripped + rest
}

/// The text before the first link, its label, and the text after it.
fn next_link(text: &str) -> Option<(&str, &str, &str)> {
    let middle = text.find("](")?;
    let start = text[..middle].rfind('[')?;
    let end = middle + text[middle..].find(')')?;
    Some((&text[..start], &text[start + 1..middle], &text[end + 1..]))
}

/// What a dotted name names: a key, a section, or both.
#[derive(Debug, Clone, Copy)]
pub struct Named<'a> {
    /// The section.
    pub section: Option<&'a Section>,
    /// The key, and the section that it belongs to.
    pub key: Option<(&'a Section, &'a Key)>,
}

/// Finds what has a dotted name. Numbers of list entries, and names that a user has chosen, stand for
/// all of their kind: `train.phase.0.steps`, `plan.nodes.p4de.gpus`.
///
/// # Errors
/// A message with the nearest name, if there is none.
pub fn find<'a>(sections: &'a [Section], name: &str) -> Result<Named<'a>, String> {
    let section = sections.iter().find(|section| !section.name.is_empty() && matches(section.name, name));
    let key = sections.iter().find_map(|section| {
        section.keys.iter().find(|key| matches(&section.path(key), name)).map(|key| (section, key))
    });
    if section.is_some() || key.is_some() {
        return Ok(Named { section, key });
    }
    let names: Vec<String> =
        sections.iter().flat_map(|section| section.keys.iter().map(|key| section.path(key))).collect();
    let hint = match nearest_name(name, &names.iter().map(String::as_str).collect::<Vec<_>>()) {
        Some(nearest) => format!("did you mean `{nearest}`?"),
        None => "`tidemill explain` lists the sections".into(),
    };
    Err(format!("`{name}` is not a key of the run file; {hint}"))
}

/// Whether a dotted name is the page's `pattern`, in which `<name>` is any part.
fn matches(pattern: &str, name: &str) -> bool {
    let is_index = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let mut parts = name.split('.').filter(|part| !is_index(part));
    pattern
        .split('.')
        .all(|expected| parts.next().is_some_and(|part| part == expected || expected.starts_with('<')))
        && parts.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_sections_are_found_by_their_dotted_names() {
        let sections = read_sections();
        let key = |name: &str| {
            let (section, key) = find(&sections, name).unwrap().key.unwrap();
            (section.name, key.name, key.default.clone())
        };
        assert_eq!(key("seed"), ("", "seed", "0".into()));
        assert_eq!(key("train.phase.0.steps").0, "train.phase");
        assert_eq!(key("plan.nodes.p4de.gpus").0, "plan.nodes.<name>");
        // `train.ema` is a key of `[train]` and a section.
        let Named { section, key } = find(&sections, "train.ema").unwrap();
        assert_eq!((section.unwrap().name, key.unwrap().1.default.as_str()), ("train.ema", "none"));
        let message = find(&sections, "train.emma").unwrap_err();
        assert!(message.contains("did you mean `train.ema`"), "{message}");
    }

    #[test]
    fn texts_have_no_links() {
        assert_eq!(strip_links("see [a](b.md#c) and [d](e)."), "see a and d.");
        for section in read_sections() {
            let texts = section.keys.iter().map(|key| &key.meaning).chain([&section.text]);
            texts.for_each(|text| assert!(!text.contains("]("), "{text}"));
        }
    }
}
