//! Fetches one image from a local path, a store or the web.

use std::io::{self, ErrorKind};

use bytes::Bytes;
use object_store::ObjectStoreExt;
use tidemill_io::error::{causes, is_too_many_open_files};
use tidemill_io::http::{self, DownloadError, MemoryGate};
use tidemill_io::{Address, is_http_url, redact_text, redact_uri, uri};

use crate::decode::MAX_BYTES;
use crate::error::Result;
use crate::source::fetch::byte_budget::ByteGrant;

/// An image's bytes, or why it cannot be fetched, as `kind: detail`.
pub type FetchResult = std::result::Result<Bytes, String>;

/// The error number of symbolic links in a circle, for which there is no stable [`ErrorKind`].
const ELOOP: i32 = if cfg!(target_os = "linux") { 40 } else { 62 };

/// Fetches an image. Its bytes are granted by the budget before they are read.
///
/// # Errors
/// If a store or this machine fails in a way that is not the fault of the image.
pub async fn fetch_image(uri: &str, grant: &mut ByteGrant) -> Result<FetchResult> {
    match is_http_url(uri) {
        true => fetch_from_web(uri, grant).await,
        false => fetch_from_store(uri, grant).await,
    }
}

async fn fetch_from_web(url: &str, grant: &mut ByteGrant) -> Result<FetchResult> {
    Ok(match http::get(url, MAX_BYTES as u64, grant).await {
        Ok(bytes) => Ok(bytes),
        Err(DownloadError::TooLarge(most)) => {
            Err(format!("size: {} has more than {most} bytes", redact_uri(url)))
        }
        Err(failure) if causes(&failure).any(is_too_many_open_files) => {
            let source = object_store::Error::Generic { store: "http", source: Box::new(failure) };
            return Err(tidemill_io::Error::Storage { action: "read", uri: redact_uri(url), source }.into());
        }
        Err(failure) => Err(format!("fetch: {}: {failure}", redact_uri(url))),
    })
}

async fn fetch_from_store(uri: &str, grant: &mut ByteGrant) -> Result<FetchResult> {
    let parsed = uri::parse(uri).and_then(|location| location.key().map(|path| (location, path)));
    let (location, path) = match parsed {
        Ok(parsed) => parsed,
        Err(problem) => return Ok(Err(format!("fetch: {problem}"))),
    };
    let response = match location.store.get(&path).await {
        Ok(response) => response,
        Err(error) => return classify_failure(&location, error),
    };
    let size = response.meta.size;
    if size > MAX_BYTES as u64 {
        return Ok(Err(format!("size: {uri} has {size} bytes, more than {MAX_BYTES}")));
    }
    grant.wait_for(size).await;
    response.bytes().await.map(Ok).or_else(|error| classify_failure(&location, error))
}

/// Decides whose fault a failure is. A fault of the image becomes its row's reason. A store that
/// does not answer, a disk that fails and a process with too many open files are errors of the
/// unit, because reasons are committed permanently.
fn classify_failure(location: &Address, error: object_store::Error) -> Result<FetchResult> {
    let uri = location.uri();
    let is_image_fault = if location.is_local() { is_file_fault } else { is_object_fault };
    match error {
        object_store::Error::NotFound { .. } => Ok(Err(format!("fetch: {uri}: there is no such image"))),
        error if is_image_fault(&error) => {
            Ok(Err(format!("fetch: {uri}: {}", redact_text(&error.to_string()))))
        }
        source => Err(tidemill_io::Error::Storage { action: "read", uri, source }.into()),
    }
}

/// True if the file cannot be read because of what it is, its name, or its owner.
fn is_file_fault(error: &object_store::Error) -> bool {
    match causes(error).next() {
        Some(error) => is_path_fault(error),
        // The name is impossible or the file has shrunk. The death of a thread is no fault of the
        // file.
        None => !matches!(error, object_store::Error::JoinError { .. }),
    }
}

/// True if an error of this machine concerns the path. All others (EMFILE, EIO, ESTALE and unknown
/// ones) may pass, or affect every image.
fn is_path_fault(error: &io::Error) -> bool {
    use ErrorKind::{InvalidFilename, InvalidInput, IsADirectory, NotADirectory, NotFound, PermissionDenied};
    let kinds = [NotFound, PermissionDenied, NotADirectory, IsADirectory, InvalidFilename, InvalidInput];
    kinds.contains(&error.kind()) || error.raw_os_error() == Some(ELOOP)
}

/// True if a store refuses this image because of its name or owner.
fn is_object_fault(error: &object_store::Error) -> bool {
    use object_store::Error::{InvalidPath, PermissionDenied};
    let malformed = ["KeyTooLong", "InvalidBucketName", "InvalidURI", "InvalidResourceName"];
    matches!(error, InvalidPath { .. } | PermissionDenied { .. })
        || malformed.iter().any(|code| error.to_string().contains(code))
}

#[cfg(test)]
mod tests {
    use std::error::Error as StdError;

    use super::*;

    fn fail_locally(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Result<FetchResult> {
        let error = object_store::Error::Generic { store: "LocalFileSystem", source: source.into() };
        classify_failure(&uri::parse("/data/a.jpg").unwrap(), error)
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn machine_failures_are_not_row_errors() {
        let cases = [
            ("EPERM", 1, true),
            ("ENOENT", 2, true),
            ("EIO", 5, false),
            ("ENOMEM", 12, false),
            ("EACCES", 13, true),
            ("ENOTDIR", 20, true),
            ("EISDIR", 21, true),
            ("EINVAL", 22, true),
            ("ENFILE", 23, false),
            ("EMFILE", 24, false),
            ("ENAMETOOLONG", 36, true),
            ("ELOOP", 40, true),
            ("ENOTCONN", 107, false),
            ("ETIMEDOUT", 110, false),
            ("EHOSTDOWN", 112, false),
            ("ESTALE", 116, false),
            ("EREMOTEIO", 121, false),
        ];
        for (name, code, is_row_error) in cases {
            let error = io::Error::from_raw_os_error(code);
            assert_eq!(is_path_fault(&error), is_row_error, "{name}");
            match fail_locally(error) {
                Ok(image) => assert!(is_row_error && image.unwrap_err().starts_with("fetch: /data/a.jpg: ")),
                Err(error) => {
                    let message = error.to_string();
                    assert!(!is_row_error && message.starts_with("cannot read /data/a.jpg: "), "{message}");
                }
            }
        }
        let message = fail_locally(io::Error::from_raw_os_error(24)).unwrap_err().to_string();
        assert!(message.contains("ulimit -n"), "{message}");
    }

    #[test]
    fn impossible_file_name_is_a_row_error() {
        for error in [io::Error::from(ErrorKind::InvalidFilename), ErrorKind::InvalidInput.into()] {
            assert!(fail_locally(error).unwrap().is_err());
        }
        assert!(fail_locally("Filenames containing trailing '/#\\d+/' are not supported").unwrap().is_err());
    }
}
