//! Profiles of the AWS CLI: `~/.aws/config` and `~/.aws/credentials`. object_store does not read them.
//!
//! As in the AWS SDKs, keys in environment variables count first, then the profile that `AWS_PROFILE`
//! names, a web identity, the profile `default`, and last containers and instances.
//! <https://docs.aws.amazon.com/sdkref/latest/guide/file-format.html>

use std::path::{Path, PathBuf};

use ini::{Ini, ParseOption, Properties};

/// Names of environment variables in lower case, and their values.
type Settings = Vec<(String, String)>;

/// The setting with the command that prints a profile's credentials. Without the prefix `aws_`, it cannot
/// come from an environment variable.
pub(super) const CREDENTIAL_PROCESS: &str = "credential_process";

/// Adds a profile's settings to those of the environment. `home` is the user's home directory.
///
/// # Errors
/// A message, if `AWS_PROFILE` names a profile that does not exist or has no keys, or if a file
/// cannot be read.
pub(super) fn add_profile(mut settings: Settings, home: Option<&Path>) -> Result<Settings, String> {
    let named = get(&settings, "aws_profile").map(str::to_owned);
    let name = named.as_deref().unwrap_or("default");
    let config = read_file(&settings, "aws_config_file", home, ".aws/config")?;
    let credentials = read_file(&settings, "aws_shared_credentials_file", home, ".aws/credentials")?;
    let config_section = match name {
        "default" => config.section(Some(name)).or_else(|| config.section(Some("profile default"))),
        name => config.section(Some(format!("profile {name}"))),
    };
    let sections =
        [credentials.section(Some(name)), config_section].into_iter().flatten().collect::<Vec<_>>();
    if let Some(named) = named.as_deref().filter(|_| sections.is_empty()) {
        return Err(format!(
            "AWS_PROFILE names `{named}`, which is in neither ~/.aws/config nor ~/.aws/credentials"
        ));
    }
    add_region_and_endpoint(&mut settings, &sections);
    add_credentials(&mut settings, &sections, named.as_deref())?;
    Ok(settings)
}

/// Adds the profile's region and endpoint where the environment names none.
fn add_region_and_endpoint(settings: &mut Settings, sections: &[&Properties]) {
    let is_any_set =
        |settings: &Settings, names: &[&str]| names.iter().any(|name| get(settings, name).is_some());
    if !is_any_set(settings, &["aws_region", "aws_default_region"]) {
        copy(settings, sections, "region", "aws_region");
    }
    let endpoints = ["aws_endpoint", "aws_endpoint_url", "aws_endpoint_url_s3"];
    if !is_true(settings, "aws_ignore_configured_endpoint_urls") && !is_any_set(settings, &endpoints) {
        copy(settings, sections, "endpoint_url", "aws_endpoint_url");
    }
}

/// Adds the profile's keys, or the command that prints them, where the environment has none.
fn add_credentials(
    settings: &mut Settings,
    sections: &[&Properties],
    named: Option<&str>,
) -> Result<(), String> {
    let is_set = |name| get(settings, name).is_some();
    let has_web_identity = named.is_none() && is_set("aws_web_identity_token_file");
    if is_set("aws_access_key_id") || is_true(settings, "aws_skip_signature") || has_web_identity {
        return Ok(());
    }
    // The keys of one section belong together.
    if let Some(section) = sections.iter().find(|section| section.contains_key("aws_access_key_id")) {
        for key in ["aws_access_key_id", "aws_secret_access_key", "aws_session_token"] {
            copy(settings, &[*section], key, key);
        }
        return Ok(());
    }
    if copy(settings, sections, "credential_process", CREDENTIAL_PROCESS) {
        return Ok(());
    }
    match named {
        Some(name) => Err(format!(
            "the profile `{name}` has neither keys nor a `credential_process`; for one that signs in or takes a role, \
             run: eval \"$(aws configure export-credentials --profile {name} --format env)\""
        )),
        None => Ok(()),
    }
}

/// Copies the first section's value of `key`. Returns whether there is one.
fn copy(settings: &mut Settings, sections: &[&Properties], key: &str, name: &str) -> bool {
    let value = sections.iter().find_map(|section| section.get(key));
    settings.extend(value.map(|value| (name.to_owned(), value.to_owned())));
    value.is_some()
}

fn is_true(settings: &Settings, name: &str) -> bool {
    get(settings, name).is_some_and(|value| ["true", "1"].contains(&value.to_lowercase().as_str()))
}

/// The value of a setting, unless it is empty.
fn get<'a>(settings: &'a Settings, name: &str) -> Option<&'a str> {
    let (_, value) = settings.iter().find(|(setting, value)| setting == name && !value.is_empty())?;
    Some(value)
}

/// Reads the file that `variable` names, or the one in the home directory, which may be absent.
fn read_file(settings: &Settings, variable: &str, home: Option<&Path>, default: &str) -> Result<Ini, String> {
    let named = get(settings, variable).map(PathBuf::from);
    let Some(path) = named.or_else(|| Some(home?.join(default))) else { return Ok(Ini::new()) };
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Ini::new()),
        Err(error) => return Err(format!("cannot read {}: {error}", path.display())),
    };
    // Secrets may have quotes and backslashes.
    let options = ParseOption { enabled_quote: false, enabled_escape: false, ..ParseOption::default() };
    Ini::load_from_str_opt(&text, options).map_err(|e| format!("cannot read {}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "[default]\nregion = eu-west-1\ns3 =\n  max_concurrent_requests = 10\n\
        [profile r2]\nendpoint_url = https://x.r2.cloudflarestorage.com\nregion = auto\n\
        [profile tool]\ncredential_process = print-keys --json\n[profile sso]\nsso_session = corp\n";
    const CREDENTIALS: &str = "# keys\n[default]\naws_access_key_id = DEFAULT\naws_secret_access_key = a\\b\"c=\n\
        [r2]\naws_access_key_id=R2\naws_secret_access_key=s\naws_session_token=t\n";

    type Variables<'a> = &'a [(&'a str, &'a str)];

    /// The settings that profiles add to these variables.
    fn added(variables: Variables) -> Result<Vec<String>, String> {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join(".aws")).unwrap();
        std::fs::write(home.path().join(".aws/config"), CONFIG).unwrap();
        std::fs::write(home.path().join(".aws/credentials"), CREDENTIALS).unwrap();
        let settings: Settings = variables.iter().map(|&(name, value)| (name.into(), value.into())).collect();
        let all = add_profile(settings, Some(home.path()))?;
        Ok(all[variables.len()..].iter().map(|(name, value)| format!("{name}={value}")).collect())
    }

    #[test]
    fn environment_variables_come_before_a_profile() {
        let keys = ["aws_access_key_id=DEFAULT", "aws_secret_access_key=a\\b\"c="];
        let cases: [(Variables, &[&str]); 9] = [
            (&[], &["aws_region=eu-west-1", keys[0], keys[1]]),
            (&[("aws_default_region", "us-east-1")], &keys),
            (&[("aws_access_key_id", "ENV")], &["aws_region=eu-west-1"]),
            (&[("aws_web_identity_token_file", "/token")], &["aws_region=eu-west-1"]),
            (&[("aws_skip_signature", "true")], &["aws_region=eu-west-1"]),
            (&[("aws_skip_signature", "false")], &["aws_region=eu-west-1", keys[0], keys[1]]),
            (
                &[("aws_profile", "tool"), ("aws_web_identity_token_file", "/token")],
                &["credential_process=print-keys --json"],
            ),
            (
                &[("aws_profile", "r2")],
                &[
                    "aws_region=auto",
                    "aws_endpoint_url=https://x.r2.cloudflarestorage.com",
                    "aws_access_key_id=R2",
                    "aws_secret_access_key=s",
                    "aws_session_token=t",
                ],
            ),
            (&[("aws_profile", "tool")], &["credential_process=print-keys --json"]),
        ];
        for (variables, expected) in cases {
            assert_eq!(added(variables).unwrap(), expected, "{variables:?}");
        }
    }

    #[test]
    fn profiles_that_cannot_be_used_are_refused_by_name() {
        for (profile, word) in
            [("nobody", "neither ~/.aws/config"), ("sso", "export-credentials --profile sso")]
        {
            let message = added(&[("aws_profile", profile)]).unwrap_err();
            assert!(message.contains(profile) && message.contains(word), "{message}");
        }
    }
}
