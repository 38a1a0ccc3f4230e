//! Prompts, without those that are empty or repeated.

use std::collections::HashSet;

use tidemill_synth::Prompt as Scene;

/// A prompt.
#[derive(Debug, Clone)]
pub struct Prompt {
    /// The text.
    pub text: String,
    /// Its category, if the file has any.
    pub category: Option<String>,
    /// What the image must show, if it is scored by rule.
    pub scene: Option<Scene>,
}

/// Prompts, and what was left out.
#[derive(Debug, Default)]
pub struct PromptList {
    /// The prompts, in the order of the file.
    pub prompts: Vec<Prompt>,
    /// Rows without text.
    pub empty: usize,
    /// Rows whose text was there before.
    pub duplicates: usize,
}

impl PromptList {
    /// Prompts from texts with their categories. Empty and repeated texts are counted and left out.
    pub fn from_rows(rows: impl Iterator<Item = (String, Option<String>)>) -> Self {
        let (mut list, mut seen) = (Self::default(), HashSet::new());
        for (text, category) in rows {
            let text = text.trim();
            if text.is_empty() {
                list.empty += 1;
            } else if seen.insert(text.to_owned()) {
                let category = category.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty());
                list.prompts.push(Prompt { text: text.to_owned(), category, scene: None });
            } else {
                list.duplicates += 1;
            }
        }
        list
    }

    /// What was left out, for people; `None` if nothing was.
    pub fn omissions(&self) -> Option<String> {
        let parts = [(self.empty, "empty"), (self.duplicates, "repeated")];
        let parts: Vec<String> =
            parts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
        (!parts.is_empty()).then(|| format!("left out {} prompts", parts.join(" and ")))
    }
}
