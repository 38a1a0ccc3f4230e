//! Caption templates such as `a photo of {caption}, by {artist}`: text with column names in braces.
//! Double braces are literal braces.

/// A parsed template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Caption,
    Column(String),
}

/// The name in a template that stands for the chosen caption.
const CAPTION: &str = "caption";

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// What is wrong with it, as text.
    pub fn parse(template: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut text = String::new();
        let mut rest = template;
        while let Some(at) = rest.find(['{', '}']) {
            text.push_str(&rest[..at]);
            let brace = &rest[at..=at];
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix(brace) {
                text.push_str(brace);
                rest = after;
                continue;
            }
            let name = if brace == "{" { rest.split_once('}') } else { None };
            let (name, after) =
                name.filter(|(name, _)| !name.contains('{')).ok_or_else(|| unbalanced(template))?;
            if name.trim().is_empty() {
                return Err(format!("{template:?} has braces without a column name in them"));
            }
            rest = after;
            parts.push(Part::Text(std::mem::take(&mut text)));
            parts.push(if name == CAPTION { Part::Caption } else { Part::Column(name.to_owned()) });
        }
        if parts.is_empty() {
            return Err(format!("{template:?} names no column, so all captions would be the same"));
        }
        text.push_str(rest);
        parts.push(Part::Text(text));
        parts.retain(|part| *part != Part::Text(String::new()));
        Ok(Self(parts))
    }

    /// Names of the columns in the template, without the caption.
    pub fn column_names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|part| match part {
            Part::Column(name) => Some(name.as_str()),
            _ => None,
        })
    }

    /// Fills in the caption and the columns' values.
    pub fn fill<'a>(&'a self, caption: &str, value: impl Fn(&'a str) -> &'a str) -> String {
        self.0.iter().fold(String::new(), |text, part| {
            text + match part {
                Part::Text(text) => text,
                Part::Caption => caption,
                Part::Column(name) => value(name),
            }
        })
    }
}

fn unbalanced(template: &str) -> String {
    format!("{template:?} has unbalanced braces; write {{{{ or }}}} for a literal brace")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_filled_with_columns() {
        let fill = |template| Template::parse(template).unwrap().fill("a cat", |name| &name[..1]);
        let cases = [
            ("{caption}", "a cat"),
            ("a photo of {caption}, {artist}", "a photo of a cat, a"),
            ("{{{caption}}} {my column}{x}", "{a cat} mx"),
            ("{x}", "x"),
        ];
        for (template, expected) in cases {
            assert_eq!(fill(template), expected, "{template}");
        }
        let template = Template::parse("{caption}, {artist} {year}").unwrap();
        assert_eq!(template.column_names().collect::<Vec<_>>(), ["artist", "year"]);
    }

    #[test]
    fn malformed_templates_are_refused() {
        let cases = [
            ("{caption", "unbalanced"),
            ("caption}", "unbalanced"),
            ("{a{caption}", "unbalanced"),
            ("{caption}}", "unbalanced"),
            ("{} {caption}", "without a column name"),
            ("a photo", "names no column"),
            ("", "names no column"),
        ];
        for (template, problem) in cases {
            let error = Template::parse(template).unwrap_err();
            assert!(error.contains(problem), "{template}: {error}");
        }
    }
}
