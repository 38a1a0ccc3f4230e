//! The differences between two settings tables, such as the `[train]` of a checkpoint and that of
//! the run file now.

use serde_json::Value;

/// A key whose value differs between two settings tables.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The path of the key, joined by dots.
    pub path: String,
    /// The value in the first table; null if the key is missing.
    pub first: Value,
    /// The value in the second table; null if the key is missing.
    pub second: Value,
}

/// Lists all keys in which two values differ. Looks into tables, not into arrays.
pub fn find_differences(first: &Value, second: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    collect_differences(first, second, String::new(), &mut found);
    found
}

fn collect_differences(first: &Value, second: &Value, path: String, found: &mut Vec<Difference>) {
    let (Some(a), Some(b)) = (first.as_object(), second.as_object()) else {
        if first != second {
            found.push(Difference { path, first: first.clone(), second: second.clone() });
        }
        return;
    };
    for key in a.keys().chain(b.keys().filter(|key| !a.contains_key(*key))) {
        let child_path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        let child = |table: &serde_json::Map<String, Value>| table.get(key).cloned().unwrap_or_default();
        collect_differences(&child(a), &child(b), child_path, found);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn differences_name_their_path_and_both_values() {
        let first = json!({ "version": "1", "train": { "eps": 1e-8, "ema": null, "phase": [1, 2] } });
        let mut second = first.clone();
        assert_eq!(find_differences(&first, &second), []);
        second["train"]["phase"] = json!([1, 3]);
        second["train"]["ema"] = json!({ "decay": 0.5 });
        second["more"] = json!(true);
        let found = find_differences(&first, &second);
        let paths: Vec<&str> = found.iter().map(|difference| difference.path.as_str()).collect();
        assert_eq!(paths, ["train.ema", "train.phase", "more"]);
        assert_eq!((&found[1].first, &found[1].second), (&json!([1, 2]), &json!([1, 3])));
        assert_eq!(found[2].first, Value::Null);
    }
}
