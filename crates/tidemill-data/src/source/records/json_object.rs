//! JSON objects as Python writes them: its `json.dumps` leaves NaN and infinities as bare words, which no JSON has.

use serde_json::{Map, Value};

/// The words that become null.
const WORDS: [&[u8]; 3] = [b"NaN", b"-Infinity", b"Infinity"];

/// The fields of an object; NaN and infinities are null.
///
/// # Errors
/// If it is no JSON object otherwise either.
pub fn object(json: &[u8]) -> serde_json::Result<Map<String, Value>> {
    serde_json::from_slice(json).or_else(|error| serde_json::from_slice(&with_nulls(json)).map_err(|_| error))
}

/// The same text with null for each of the words that is not within a string.
fn with_nulls(json: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(json.len());
    let mut rest = json;
    let mut quoted = false;
    while let [byte, ..] = rest {
        let word = WORDS.iter().find(|word| !quoted && rest.starts_with(word));
        quoted ^= *byte == b'"';
        // An escaped quote does not end its string.
        let step = match word {
            Some(word) => word.len(),
            None if quoted && *byte == b'\\' => rest.len().min(2),
            None => 1,
        };
        out.extend_from_slice(if word.is_some() { b"null" } else { &rest[..step] });
        rest = &rest[step..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::object;

    #[test]
    fn words_that_are_no_json_are_null_but_not_in_strings() {
        let cases = [
            (r#"{"a": NaN, "b": [-Infinity,Infinity], "c": 1}"#, Some(r#"{"a":null,"b":[null,null],"c":1}"#)),
            (r#"{"NaN": "\"NaN\\", "b": NaN}"#, Some(r#"{"NaN":"\"NaN\\","b":null}"#)),
            (r#"{"a": "NaN", "b": -1}"#, Some(r#"{"a":"NaN","b":-1}"#)),
            (r#"{"a": 1NaN}"#, None),
            (r#"{"a": -NaN}"#, None),
            (r#"{"a": "NaN\"#, None),
            ("[NaN]", None),
        ];
        for (json, expected) in cases {
            let found = object(json.as_bytes()).ok().map(|fields| serde_json::json!(fields).to_string());
            assert_eq!(found.as_deref(), expected, "{json}");
        }
    }
}
