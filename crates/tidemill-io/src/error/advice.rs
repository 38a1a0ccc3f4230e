//! Turns the errors of stores and systems, which are codes and XML, into plain words and advice.

use std::io::{self, ErrorKind};

use crate::error::causes::{NoHardLinks, causes, is_too_many_open_files};
use crate::redact::redact_text;

/// The store's message and what to do about it, without secrets.
pub(super) fn explain(error: &object_store::Error, uri: &str) -> String {
    let message = extract_message(&redact_text(&error.to_string()));
    match find_advice(error, &message, uri) {
        Some(advice) => format!("{message}; {advice}"),
        None => message,
    }
}

/// Reduces the XML that S3 and Azure put into a message to its code and message.
fn extract_message(text: &str) -> String {
    let Some(start) = text.find("<?xml").or_else(|| text.find("<Error>")) else {
        return text.trim().to_owned();
    };
    let element = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        Some(rest.split_once(&format!("</{name}>"))?.0.trim().to_owned())
    };
    // Azure appends lines with the request's id and time.
    let message = element("Message").and_then(|message| Some(message.lines().next()?.to_owned()));
    let parts = [Some(text[..start].trim_end_matches([' ', ':']).to_owned()), element("Code"), message];
    parts.into_iter().flatten().collect::<Vec<_>>().join(": ")
}

/// What the user can do about an error; `None` if there is nothing useful to advise.
fn find_advice(error: &object_store::Error, message: &str, uri: &str) -> Option<String> {
    if causes::<NoHardLinks>(error).next().is_some() {
        return Some(NO_HARD_LINKS.into());
    }
    // A wrapper of a system error does not have its kind.
    if let Some(advice) = causes::<io::Error>(error).find_map(find_local_advice) {
        return Some(advice.into());
    }
    let (credentials, endpoint) = name_variables(uri);
    if is_bucket_missing(message) {
        return Some(format!("there is no such bucket: check its name, and {endpoint}"));
    }
    if message.contains("redirect") {
        return Some(format!("the bucket is in another region or at another endpoint: check {endpoint}"));
    }
    if message.contains("169.254.") || message.contains("metadata.google") {
        return Some(format!("no credentials were found: set {credentials}"));
    }
    match error {
        _ if is_refused(error, message) => {
            Some(format!("check the credentials ({credentials}) and whether they may do this"))
        }
        object_store::Error::Generic { .. } if uri.contains("://") => {
            Some(format!("check the network and {endpoint}; the same command continues where it stopped"))
        }
        _ => None,
    }
}

/// Whether the store denied access. object_store has variants for that, but listings do not use
/// them.
fn is_refused(error: &object_store::Error, message: &str) -> bool {
    use object_store::Error::{PermissionDenied, Unauthenticated};
    matches!(error, PermissionDenied { .. } | Unauthenticated { .. })
        || ["401 Unauthorized", "403 Forbidden"].iter().any(|status| message.contains(status))
}

/// Whether a message says that there is no such bucket, in the words of S3, Azure or Google.
pub(super) fn is_bucket_missing(message: &str) -> bool {
    ["NoSuchBucket", "ContainerNotFound", "bucket does not exist"].iter().any(|words| message.contains(words))
}

/// Advice where a file system has no hard links: gcsfuse, blobfuse and some SMB servers.
const NO_HARD_LINKS: &str = "commits need them, so that of two writers one wins: put `output` or `checkpoint.uri` on another file \
                             system, or into a bucket by its own URI (s3://, gs://, az://)";

/// Advice for an error of the local system.
fn find_local_advice(error: &io::Error) -> Option<&'static str> {
    if is_too_many_open_files(error) {
        return Some("raise the limit on open files (`ulimit -n`), then run the same command again");
    }
    Some(match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "the disk is full: free some space or choose another folder, then run the same command again"
        }
        ErrorKind::PermissionDenied => {
            "this user may not do that: check the owner and mode of the file and its folder"
        }
        ErrorKind::ReadOnlyFilesystem => "the file system is read-only: choose another folder",
        ErrorKind::StaleNetworkFileHandle => {
            "the server has replaced it or was restarted: mount the file system again, then run the same command again"
        }
        ErrorKind::NotADirectory => "a part of the path is a file where a folder is needed: correct the path",
        _ => return None,
    })
}

/// The environment variables with a store's credentials, and those with its endpoint.
fn name_variables(uri: &str) -> (&'static str, &'static str) {
    match uri.split_once("://").map_or("", |(scheme, _)| scheme) {
        "s3" | "s3a" => (
            "AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, with AWS_SESSION_TOKEN if they are \
             temporary",
            "AWS_REGION and AWS_ENDPOINT_URL",
        ),
        "gs" => ("GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT", "the project"),
        "http" | "https" => ("none are sent over http; use the store's own scheme", "the address"),
        _ => (
            "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or AZURE_STORAGE_SAS_KEY",
            "AZURE_STORAGE_ACCOUNT_NAME",
        ),
    }
}
