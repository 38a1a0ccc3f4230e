//! Names of columns that lead into nested fields: `meta.text`, `captions[0]`, `sentences[*].raw`.

use std::borrow::Cow;

use serde_json::{Map, Value};

/// A step from a field into its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The field of an object or struct.
    Field(String),
    /// The item of a list, from 0.
    Item(usize),
    /// All items of a list.
    Items,
}

/// The steps of a name. A plain name is one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldPath(pub Vec<Step>);

impl FieldPath {
    /// Parses a name; `None` if it is no path, such as `a..b` or `a[x]`. A field that is called like
    /// a path is found by its name, before this is asked.
    pub fn parse(name: &str) -> Option<Self> {
        let mut steps = Vec::new();
        for part in name.split('.') {
            let (field, items) = part.split_at(part.find('[').unwrap_or(part.len()));
            if field.is_empty() {
                return None;
            }
            steps.push(Step::Field(field.to_owned()));
            let mut rest = items;
            while let Some(item) = rest.strip_prefix('[') {
                let (item, after) = item.split_once(']')?;
                steps.push(if item == "*" { Step::Items } else { Step::Item(item.parse().ok()?) });
                rest = after;
            }
            if !rest.is_empty() {
                return None;
            }
        }
        Some(Self(steps))
    }

    /// Whether the path has several values: it takes all items of a list.
    pub fn is_list(name: &str) -> bool {
        name.contains("[*]") && Self::parse(name).is_some_and(|path| path.0.contains(&Step::Items))
    }
}

/// The value of a field in a JSON object, by its name or a path. A first step `json` that the object
/// does not have is the object itself: of a WebDataset sample, its member `.json`.
pub fn find_value<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<Cow<'a, Value>> {
    if let Some(value) = fields.get(name) {
        return Some(Cow::Borrowed(value));
    }
    if !name.contains(['.', '[']) {
        return None;
    }
    let path = FieldPath::parse(name)?;
    match path.0.as_slice() {
        [Step::Field(json), Step::Field(first), rest @ ..]
            if json == "json" && !fields.contains_key("json") =>
        {
            follow(fields.get(first)?, rest)
        }
        [Step::Field(first), rest @ ..] => follow(fields.get(first)?, rest),
        _ => None,
    }
}

fn follow<'a>(value: &'a Value, steps: &[Step]) -> Option<Cow<'a, Value>> {
    let Some((step, rest)) = steps.split_first() else { return Some(Cow::Borrowed(value)) };
    match step {
        Step::Field(name) => follow(value.get(name)?, rest),
        Step::Item(item) => follow(value.get(item)?, rest),
        Step::Items => {
            let items = value.as_array()?.iter().filter_map(|item| follow(item, rest));
            Some(Cow::Owned(Value::Array(items.map(Cow::into_owned).collect())))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_found_by_name_and_by_path() {
        let row = json!({
            "a": {"b": [{"c": 1}, {"c": 2}, {}]}, "a.b": "literal", "l": ["x", ["y"]], "w": {"json": 7}
        });
        for (name, expected) in [
            ("a.b", Some(json!("literal"))),
            ("a.b[0].c", Some(json!(1))),
            ("a.b[*].c", Some(json!([1, 2]))),
            ("a.b[3].c", None),
            ("l[1][0]", Some(json!("y"))),
            ("l[*]", Some(json!(["x", ["y"]]))),
            ("json.l[0]", Some(json!("x"))),
            ("w.json", Some(json!(7))),
            ("json.w.json", Some(json!(7))),
            ("l.x", None),
            ("l[x]", None),
            ("l[0", None),
            ("l[0]x", None),
            (".l", None),
            ("", None),
        ] {
            let found = find_value(row.as_object().unwrap(), name).map(Cow::into_owned);
            assert_eq!(found, expected, "{name}");
        }
        assert!(FieldPath::is_list("l[*]") && !FieldPath::is_list("l[0]") && !FieldPath::is_list("[*]"));
    }
}
