//! Messages about unknown keys and values, with the nearest valid name as a suggestion ("did you
//! mean ...?"). They replace serde's messages, which do not contain the full key.

/// The similarity (Jaro-Winkler, 0 to 1) from which a valid name is suggested.
const MIN_SIMILARITY: f64 = 0.7;

/// Rewrites serde's message about the dotted key `key` (empty if unknown). Returns the message and
/// a help text.
pub(super) fn rewrite_serde_message(key: &str, message: &str) -> (String, Option<String>) {
    let problem = if message.starts_with("unknown field") {
        "is not a key of the run file"
    } else if message.starts_with("unknown variant") {
        "is not a possible value"
    } else if let Some(field) = message.strip_prefix("missing field ") {
        let section = if key.is_empty() { String::new() } else { format!(" in [{key}]") };
        return (format!("the key {field} is missing{section}"), None);
    } else {
        let key = if key.is_empty() { String::new() } else { format!("{key}: ") };
        return (format!("{key}{message}"), None);
    };
    // serde puts the wrong name first and the valid names after it, each in backticks.
    let names: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    let Some((wrong, valid)) = names.split_first() else { return (message.to_string(), None) };
    let subject = if message.starts_with("unknown variant") {
        format!("{key}: \"{wrong}\"")
    } else if key.is_empty() {
        format!("`{wrong}`")
    } else {
        format!("`{key}`")
    };
    (format!("{subject} {problem}"), Some(suggest_name(wrong, valid)))
}

/// The valid name that is most like a wrong one, if one is like it.
pub(super) fn nearest_name<'a>(wrong: &str, valid: &[&'a str]) -> Option<&'a str> {
    let similarity = |name: &&str| strsim::jaro_winkler(wrong, name);
    let nearest = valid.iter().copied().max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
    nearest.filter(|name| similarity(name) > MIN_SIMILARITY)
}

fn suggest_name(wrong: &str, valid: &[&str]) -> String {
    let all = valid.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    match nearest_name(wrong, valid) {
        Some(nearest) => format!("did you mean `{nearest}`? Known here: {all}"),
        None => format!("known here: {all}"),
    }
}
