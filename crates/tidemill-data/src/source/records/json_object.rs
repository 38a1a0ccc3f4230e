//! Parses JSON objects as Python writes them: `json.dumps` leaves NaN and infinities as bare words,
//! which are not valid JSON.

use serde_json::{Map, Value};

/// The words that become null.
const WORDS: [&[u8]; 3] = [b"NaN", b"-Infinity", b"Infinity"];

/// The fields of an object; NaN and infinities are null.
///
/// # Errors
/// If the text is not a JSON object apart from these words.
pub fn parse_object(json: &[u8]) -> serde_json::Result<Map<String, Value>> {
    serde_json::from_slice(json)
        .or_else(|error| serde_json::from_slice(&replace_non_json_words(json)).map_err(|_| error))
}

/// Replaces each of the words outside strings by null.
fn replace_non_json_words(json: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(json.len());
    let mut rest = json;
    let mut is_in_string = false;
    while let [byte, ..] = rest {
        let word = WORDS.iter().find(|word| !is_in_string && rest.starts_with(word));
        is_in_string ^= *byte == b'"';
        // An escaped quote does not end its string.
        let step = match word {
            Some(word) => word.len(),
            None if is_in_string && *byte == b'\\' => rest.len().min(2),
            None => 1,
        };
        out.extend_from_slice(if word.is_some() { b"null" } else { &rest[..step] });
        rest = &rest[step..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::parse_object;

    #[test]
    fn nan_and_infinity_are_null_outside_strings() {
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
            let found =
                parse_object(json.as_bytes()).ok().map(|fields| serde_json::json!(fields).to_string());
            assert_eq!(found.as_deref(), expected, "{json}");
        }
    }
}
