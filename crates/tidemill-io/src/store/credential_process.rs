//! Credentials that a command prints: `credential_process` of an AWS profile.
//! <https://docs.aws.amazon.com/sdkref/latest/guide/feature-process-credentials.html>

use std::fmt;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use serde::Deserialize;
use tokio::sync::Mutex;

/// Credentials are renewed this long before they expire.
const RENEW_BEFORE: TimeDelta = TimeDelta::minutes(5);

/// Runs the command when credentials are needed, and again before they expire.
pub(super) struct CredentialProcess {
    command: String,
    current: Mutex<Option<Printed>>,
}

/// What the command printed.
struct Printed {
    credential: Arc<AwsCredential>,
    expires: Option<DateTime<Utc>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    version: u32,
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
    /// ISO 8601.
    expiration: Option<String>,
}

impl fmt::Debug for CredentialProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CredentialProcess").field("program", &self.program()).finish_non_exhaustive()
    }
}

impl CredentialProcess {
    pub fn new(command: &str) -> Self {
        Self { command: command.to_owned(), current: Mutex::new(None) }
    }

    /// The command without its arguments, which may be secrets.
    fn program(&self) -> &str {
        self.command.split_whitespace().next().unwrap_or_default()
    }

    /// Runs the command in a shell, as the AWS SDK for Rust does. It may ask the user on stderr.
    async fn run(&self) -> Result<Printed, String> {
        let mut shell = Command::new("sh");
        shell.args(["-c", &self.command]).stdin(Stdio::inherit()).stderr(Stdio::inherit());
        let output = tokio::task::spawn_blocking(move || shell.output()).await;
        let output = output.map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
        parse_answer(&output)
    }
}

#[async_trait::async_trait]
impl CredentialProvider for CredentialProcess {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        // The lock makes other requests wait for the command, instead of running it as well.
        let mut current = self.current.lock().await;
        if let Some(printed) = current.as_ref().filter(|printed| !needs_renewal(printed.expires, Utc::now()))
        {
            return Ok(printed.credential.clone());
        }
        let printed = self.run().await.map_err(|problem| object_store::Error::Generic {
            store: "S3",
            source: format!("the credential_process `{} ...`: {problem}", self.program()).into(),
        })?;
        Ok(current.insert(printed).credential.clone())
    }
}

fn needs_renewal(expires: Option<DateTime<Utc>>, now: DateTime<Utc>) -> bool {
    expires.is_some_and(|expires| expires - now < RENEW_BEFORE)
}

/// Never repeats what the command printed, because that has secrets.
fn parse_answer(output: &Output) -> Result<Printed, String> {
    if !output.status.success() {
        return Err(format!("it failed ({})", output.status));
    }
    let answer: Answer = serde_json::from_slice(&output.stdout).map_err(|e| {
        format!("it did not print credentials as JSON (line {}, column {})", e.line(), e.column())
    })?;
    if answer.version != 1 {
        return Err(format!("it printed version {} of its format; version 1 is known", answer.version));
    }
    let expires = match answer.expiration.as_deref().map(DateTime::parse_from_rfc3339).transpose() {
        Ok(expires) => expires.map(|expires| expires.to_utc()),
        Err(_) => return Err("it printed an `Expiration` that is no time in ISO 8601".into()),
    };
    let credential = AwsCredential {
        key_id: answer.access_key_id,
        secret_key: answer.secret_access_key,
        token: answer.session_token,
    };
    Ok(Printed { credential: Arc::new(credential), expires })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get_credential(process: &CredentialProcess) -> object_store::Result<Arc<AwsCredential>> {
        crate::runtime().unwrap().block_on(process.get_credential())
    }

    #[test]
    fn credentials_are_renewed_five_minutes_before_they_expire() {
        let now = Utc::now();
        for (minutes, renews) in [(None, false), (Some(6), false), (Some(4), true), (Some(-1), true)] {
            let expires = minutes.map(|minutes| now + TimeDelta::minutes(minutes));
            assert_eq!(needs_renewal(expires, now), renews, "{minutes:?}");
        }
    }

    #[test]
    fn command_runs_again_only_when_its_keys_expire_soon() {
        for (minutes, runs) in [(60, 1), (1, 3)] {
            let log = tempfile::NamedTempFile::new().unwrap();
            let expires = (Utc::now() + TimeDelta::minutes(minutes)).to_rfc3339();
            let command = format!(
                r#"echo x >> {}; echo '{{"Version": 1, "AccessKeyId": "k", "SecretAccessKey": "s", "Expiration": "{expires}"}}'"#,
                log.path().display()
            );
            let process = CredentialProcess::new(&command);
            for _ in 0..3 {
                assert_eq!(get_credential(&process).unwrap().key_id, "k");
            }
            assert_eq!(
                std::fs::read_to_string(log.path()).unwrap().lines().count(),
                runs,
                "{minutes} minutes"
            );
        }
    }

    #[test]
    fn errors_name_the_program_and_not_its_arguments() {
        let process = CredentialProcess::new("false --token SECRET");
        let error = get_credential(&process).unwrap_err();
        let message = format!("{error} {error:?} {process:?}");
        assert!(message.contains("`false ...`") && !message.contains("SECRET"), "{message}");
    }

    #[test]
    fn answers_that_are_no_credentials_are_refused_without_secrets() {
        for (command, word) in [
            ("exit 3", "exit status: 3"),
            ("echo SECRET", "line 1"),
            (r#"echo '{"Version": 1, "AccessKeyId": "SECRET"}'"#, "JSON"),
            (
                r#"echo '{"Version": 1, "AccessKeyId": "k", "SecretAccessKey": "SECRET", "Expiration": "soon"}'"#,
                "ISO 8601",
            ),
            (r#"echo '{"Version": 2, "AccessKeyId": "k", "SecretAccessKey": "SECRET"}'"#, "version 2"),
        ] {
            let output = Command::new("sh").args(["-c", command]).output().unwrap();
            let problem = parse_answer(&output).err().unwrap();
            assert!(problem.contains(word) && !problem.contains("SECRET"), "{problem}");
        }
    }
}
