//! The crate's error type. Its messages contain no secrets of URLs.

use crate::error::advice::{explain, is_bucket_missing};
use crate::redact::{redact_text, redact_uri};

/// The crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An invalid path or URI, or a store that refused or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A path or URI cannot be parsed or opened, or names nothing.
    #[error("`{}`: {}", redact_uri(uri), redact_text(problem))]
    Uri {
        /// The path or URI as given.
        uri: String,
        /// What is wrong, and what to write instead.
        problem: String,
    },
    /// The store refused or failed.
    #[error("cannot {action} {}: {}", redact_uri(uri), explain(source, uri))]
    Storage {
        /// The operation, as a verb: `read`, `write`, `list`, `delete`.
        action: &'static str,
        /// The object or folder.
        uri: String,
        /// The store's error.
        source: object_store::Error,
    },
    /// The I/O threads could not be started.
    #[error("cannot start the threads for input and output: {0}; raise the limit on processes")]
    Threads(#[from] std::io::Error),
}

impl Error {
    /// Whether the object does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Storage { source: object_store::Error::NotFound { .. }, .. })
    }

    /// Whether the object changed: its entity tag is not the requested one.
    pub fn is_changed(&self) -> bool {
        let Self::Storage { source, .. } = self else { return false };
        // While a body is read, object_store has no variant for this status.
        matches!(source, object_store::Error::Precondition { .. })
            || source.to_string().contains("412 Precondition Failed")
    }

    /// Whether the bucket itself does not exist.
    pub(crate) fn is_bucket_missing(&self) -> bool {
        matches!(self, Self::Storage { source, .. } if is_bucket_missing(&source.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as StdError;
    use std::io::{self, ErrorKind};

    use super::*;
    use crate::error::causes::NoHardLinks;

    fn message(uri: &str, source: object_store::Error) -> String {
        Error::Storage { action: "write", uri: uri.into(), source }.to_string()
    }

    fn local(source: impl StdError + Send + Sync + 'static) -> object_store::Error {
        object_store::Error::Generic { store: "x", source: Box::new(source) }
    }

    #[test]
    fn system_errors_come_with_advice() {
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
    fn a_file_system_without_hard_links_is_named_as_the_cause() {
        let refused = io::Error::from(ErrorKind::PermissionDenied);
        let message = message("/data/commit.json", local(NoHardLinks(refused)));
        for part in ["/data/commit.json", "no hard link", "permission denied", "`checkpoint.uri`", "bucket"] {
            assert!(message.contains(part) && !message.contains("owner and mode"), "{part}: {message}");
        }
    }

    #[test]
    fn xml_answers_are_reduced_to_code_and_message() {
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
    fn signatures_and_passwords_are_redacted() {
        let url = "https://user:secret@host/a.tar?sig=secret";
        let source = object_store::Error::Generic { store: "x", source: format!("GET {url} failed").into() };
        let refused = Error::Uri { uri: url.into(), problem: format!("{url} is none") };
        for message in [message(url, source), refused.to_string()] {
            assert!(message.contains("https://host/a.tar?…") && !message.contains("secret"), "{message}");
        }
    }

    #[test]
    fn refused_credentials_name_their_environment_variables() {
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
