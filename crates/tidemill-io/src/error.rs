//! What can go wrong with a path, a URI or a store. Every message says what was wrong, where, and what to do; what
//! stores and systems say in codes is put into words here, and what their URLs keep secret left out.

use std::error::Error as StdError;
use std::io::{self, ErrorKind};

use crate::redact::{redacted, shown};

/// The crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A place that makes no sense, or a store that refused or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A path or URI that cannot be understood or opened, or that names nothing.
    #[error("`{}`: {}", shown(uri), redacted(problem))]
    Uri {
        /// As given.
        uri: String,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// The store refused or failed.
    #[error("cannot {action} {}: {}", shown(uri), explain(source, uri))]
    Storage {
        /// What was tried.
        action: &'static str,
        /// The object or folder.
        uri: String,
        /// The store's reason.
        source: object_store::Error,
    },
    /// The threads that do input and output could not be started.
    #[error("cannot start the threads for input and output: {0}; raise the limit on processes")]
    Threads(#[from] std::io::Error),
}

impl Error {
    /// Whether there is no such object.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Storage { source: object_store::Error::NotFound { .. }, .. })
    }

    /// Whether the object is no longer the one whose entity tag was given.
    pub fn is_changed(&self) -> bool {
        let Self::Storage { source, .. } = self else { return false };
        // In the middle of a body object_store has no variant for it.
        matches!(source, object_store::Error::Precondition { .. })
            || source.to_string().contains("412 Precondition Failed")
    }

    /// Whether not even the bucket is there.
    pub(crate) fn is_bucket_missing(&self) -> bool {
        matches!(self, Self::Storage { source, .. } if is_bucket_missing(&source.to_string()))
    }
}

/// A file of a local folder could not be given a second name. The system's error is no cause: what is advised of it would be wrong.
#[derive(Debug, thiserror::Error)]
#[error("no hard link can be made there: {0}")]
pub(crate) struct NoHardLinks(pub io::Error);

/// The errors of some type among an error and its causes.
pub fn causes<'a, T: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a T> {
    std::iter::successors(Some(error), |&error| error.source()).filter_map(|error| error.downcast_ref())
}

/// What the store said, and what to do about it.
fn explain(error: &object_store::Error, uri: &str) -> String {
    let said = said(&redacted(&error.to_string()));
    match advice(error, &said, uri) {
        Some(advice) => format!("{said}; {advice}"),
        None => said,
    }
}

/// The message with the XML of S3 and Azure, if there is any, reduced to its code and message.
fn said(text: &str) -> String {
    let Some(start) = text.find("<?xml").or_else(|| text.find("<Error>")) else {
        return text.trim().to_owned();
    };
    let element = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        Some(rest.split_once(&format!("</{name}>"))?.0.trim().to_owned())
    };
    // Azure adds lines with the request's id and time.
    let message = element("Message").and_then(|message| Some(message.lines().next()?.to_owned()));
    let parts = [Some(text[..start].trim_end_matches([' ', ':']).to_owned()), element("Code"), message];
    parts.into_iter().flatten().collect::<Vec<_>>().join(": ")
}

fn advice(error: &object_store::Error, said: &str, uri: &str) -> Option<String> {
    if causes::<NoHardLinks>(error).next().is_some() {
        return Some(NO_HARD_LINKS.into());
    }
    // An error of the system may come wrapped in another one, which says nothing of its kind.
    if let Some(advice) = causes::<io::Error>(error).find_map(local_advice) {
        return Some(advice.into());
    }
    let (credentials, place) = variables(uri);
    if is_bucket_missing(said) {
        return Some(format!("there is no such bucket: check its name, and {place}"));
    }
    if said.contains("redirect") {
        return Some(format!("the bucket is elsewhere: check {place}"));
    }
    if said.contains("169.254.") || said.contains("metadata.google") {
        return Some(format!("no credentials were found: set {credentials}"));
    }
    match error {
        _ if is_refused(error, said) => {
            Some(format!("check the credentials ({credentials}) and whether they may do this"))
        }
        object_store::Error::Generic { .. } if uri.contains("://") => {
            Some(format!("check the network and {place}; the same command goes on where it stopped"))
        }
        _ => None,
    }
}

/// object_store has variants for refusals, but not where it lists.
fn is_refused(error: &object_store::Error, said: &str) -> bool {
    use object_store::Error::{PermissionDenied, Unauthenticated};
    matches!(error, PermissionDenied { .. } | Unauthenticated { .. })
        || ["401 Unauthorized", "403 Forbidden"].iter().any(|status| said.contains(status))
}

/// In the words of S3, Azure and Google.
fn is_bucket_missing(said: &str) -> bool {
    ["NoSuchBucket", "ContainerNotFound", "bucket does not exist"].iter().any(|words| said.contains(words))
}

/// gcsfuse, blobfuse and some SMB servers have none.
const NO_HARD_LINKS: &str = "commits need them, so that of two writers one wins: put `output` or `checkpoint.uri` on another file \
                             system, or into a bucket by its own URI (s3://, gs://, az://)";

/// EMFILE and ENFILE, which have no [`ErrorKind`] and are these numbers on all systems.
const TOO_MANY_FILES: [i32; 2] = [24, 23];

/// Whether this process, or the machine, has as many files and sockets open as it may.
pub fn is_too_many_files(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(|code| TOO_MANY_FILES.contains(&code))
}

fn local_advice(error: &io::Error) -> Option<&'static str> {
    if is_too_many_files(error) {
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

/// The environment variables that hold a store's credentials, and those that say where it is.
fn variables(uri: &str) -> (&'static str, &'static str) {
    match uri.split_once("://").map_or("", |(scheme, _)| scheme) {
        "s3" | "s3a" => (
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, with AWS_SESSION_TOKEN if they are temporary",
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

#[cfg(test)]
mod tests {
    use super::*;

    fn message(uri: &str, source: object_store::Error) -> String {
        Error::Storage { action: "write", uri: uri.into(), source }.to_string()
    }

    fn local(source: impl StdError + Send + Sync + 'static) -> object_store::Error {
        object_store::Error::Generic { store: "x", source: Box::new(source) }
    }

    #[test]
    fn what_the_system_says_becomes_advice() {
        let cases = [
            (io::Error::from(ErrorKind::StorageFull), "free some space"),
            (ErrorKind::PermissionDenied.into(), "owner and mode"),
            (ErrorKind::ReadOnlyFilesystem.into(), "read-only"),
            (ErrorKind::NotADirectory.into(), "is a file"),
            (ErrorKind::StaleNetworkFileHandle.into(), "mount the file system again"),
            (io::Error::from_raw_os_error(24), "ulimit -n"),
        ];
        for (error, advice) in cases {
            let message = message("/data/x", local(error));
            assert!(message.starts_with("cannot write /data/x: ") && message.contains(advice), "{message}");
        }
    }

    #[test]
    fn a_file_system_without_hard_links_is_named_as_such() {
        let refused = io::Error::from(ErrorKind::PermissionDenied);
        let message = message("/data/commit.json", local(NoHardLinks(refused)));
        for part in ["/data/commit.json", "no hard link", "permission denied", "`checkpoint.uri`", "bucket"] {
            assert!(message.contains(part) && !message.contains("owner and mode"), "{part}: {message}");
        }
    }

    #[test]
    fn the_xml_of_stores_is_reduced_to_what_it_says() {
        let xml = "<?xml version=\"1.0\"?><Error><Code>NoSuchBucket</Code><Message>Not there\nTime:0</Message></Error>";
        let source = format!("Server returned non-2xx status code: 404 Not Found: {xml}").into();
        let message = message("s3://b/x", object_store::Error::NotFound { path: "x".into(), source });
        assert!(
            message.contains("404 Not Found: NoSuchBucket: Not there; there is no such bucket"),
            "{message}"
        );
        assert!(message.contains("AWS_ENDPOINT_URL") && !message.contains("xml"), "{message}");
    }

    #[test]
    fn signatures_and_passwords_are_left_out() {
        let url = "https://user:secret@host/a.tar?sig=secret";
        let source = object_store::Error::Generic { store: "x", source: format!("GET {url} failed").into() };
        let refused = Error::Uri { uri: url.into(), problem: format!("{url} is none") };
        for message in [message(url, source), refused.to_string()] {
            assert!(message.contains("https://host/a.tar?…") && !message.contains("secret"), "{message}");
        }
    }

    #[test]
    fn refused_credentials_name_their_variables() {
        for (uri, variable) in [
            ("s3://b/x", "AWS_SECRET_ACCESS_KEY"),
            ("gs://b/x", "GOOGLE_APPLICATION_CREDENTIALS"),
            ("abfss://c@a.dfs.core.windows.net/x", "AZURE_STORAGE_ACCOUNT_KEY"),
        ] {
            let source = object_store::Error::Unauthenticated { path: "x".into(), source: "401".into() };
            let message = message(uri, source);
            assert!(message.contains(uri) && message.contains(variable), "{message}");
        }
    }
}
