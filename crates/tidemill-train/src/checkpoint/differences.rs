//! In what two descriptions of a run differ.

use serde_json::Value;

/// A place in which two values differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Keys, joined by dots.
    pub path: String,
    /// What the first has there; null if nothing.
    pub first: Value,
    /// What the second has there.
    pub second: Value,
}

/// All places in which two values differ, looking into tables only.
pub fn differences(first: &Value, second: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    find(first, second, String::new(), &mut found);
    found
}

fn find(first: &Value, second: &Value, path: String, found: &mut Vec<Difference>) {
    let (Some(a), Some(b)) = (first.as_object(), second.as_object()) else {
        if first != second {
            found.push(Difference { path, first: first.clone(), second: second.clone() });
        }
        return;
    };
    for key in a.keys().chain(b.keys().filter(|key| !a.contains_key(*key))) {
        let below = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        let at = |table: &serde_json::Map<String, Value>| table.get(key).cloned().unwrap_or_default();
        find(&at(a), &at(b), below, found);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn differences_have_their_place_and_both_values() {
        let first = json!({ "version": "1", "train": { "eps": 1e-8, "ema": null, "phase": [1, 2] } });
        let mut second = first.clone();
        assert_eq!(differences(&first, &second), []);
        second["train"]["phase"] = json!([1, 3]);
        second["train"]["ema"] = json!({ "decay": 0.5 });
        second["more"] = json!(true);
        let found = differences(&first, &second);
        let paths: Vec<&str> = found.iter().map(|difference| difference.path.as_str()).collect();
        assert_eq!(paths, ["train.ema", "train.phase", "more"]);
        assert_eq!((&found[1].first, &found[1].second), (&json!([1, 2]), &json!([1, 3])));
        assert_eq!(found[2].first, Value::Null);
    }
}
