//! One image, wherever it lies.

use std::io::{self, ErrorKind};

use bytes::Bytes;
use object_store::ObjectStoreExt;
use tidemill_io::error::{causes, is_too_many_files};
use tidemill_io::http::{self, Failure, Room};
use tidemill_io::{Address, redacted, shown, uri};

use crate::decode::MAX_BYTES;
use crate::error::Result;
use crate::source::fetch::byte_budget::Place;

/// An image's bytes, or why there are none, as `kind: detail`.
pub type Fetched = std::result::Result<Bytes, String>;

/// What the system says of a path whose links lead in a circle, for which there is no stable [`ErrorKind`].
const LOOP: i32 = if cfg!(target_os = "linux") { 40 } else { 62 };

/// Gets an image of a store, of this machine or of the web; what it holds has a place before it comes.
///
/// # Errors
/// If a store or this machine fails in a way that says nothing of the image.
pub async fn image(uri: &str, place: &mut Place) -> Result<Fetched> {
    match http::is_url(uri) {
        true => of_web(uri, place).await,
        false => of_store(uri, place).await,
    }
}

async fn of_web(url: &str, place: &mut Place) -> Result<Fetched> {
    Ok(match http::get(url, MAX_BYTES as u64, place).await {
        Ok(bytes) => Ok(bytes),
        Err(Failure::TooLarge(most)) => Err(format!("size: {} has more than {most} bytes", shown(url))),
        Err(failure) if causes(&failure).any(is_too_many_files) => {
            let source = object_store::Error::Generic { store: "http", source: Box::new(failure) };
            return Err(tidemill_io::Error::Storage { action: "read", uri: shown(url), source }.into());
        }
        Err(failure) => Err(format!("fetch: {}: {failure}", shown(url))),
    })
}

async fn of_store(uri: &str, place: &mut Place) -> Result<Fetched> {
    let named = uri::parse(uri).and_then(|location| location.key().map(|path| (location, path)));
    let (location, path) = match named {
        Ok(named) => named,
        Err(problem) => return Ok(Err(format!("fetch: {problem}"))),
    };
    let response = match location.store.get(&path).await {
        Ok(response) => response,
        Err(error) => return failed(&location, error),
    };
    let size = response.meta.size;
    if size > MAX_BYTES as u64 {
        return Ok(Err(format!("size: {uri} has {size} bytes, more than {MAX_BYTES}")));
    }
    place.wait_for(size).await;
    response.bytes().await.map(Ok).or_else(|error| failed(&location, error))
}

/// What is wrong with one image is its row's reason. A store that does not answer, a disk that fails and a process with
/// too many files open are the unit's error: reasons are committed for good.
fn failed(location: &Address, error: object_store::Error) -> Result<Fetched> {
    let uri = location.uri();
    let is_the_images = if location.is_local() { is_the_files } else { is_the_objects };
    match error {
        object_store::Error::NotFound { .. } => Ok(Err(format!("fetch: {uri}: there is no such image"))),
        error if is_the_images(&error) => Ok(Err(format!("fetch: {uri}: {}", redacted(&error.to_string())))),
        source => Err(tidemill_io::Error::Storage { action: "read", uri, source }.into()),
    }
}

/// Whether this file cannot be had for what it is or is called, or whose it is.
fn is_the_files(error: &object_store::Error) -> bool {
    match causes(error).next() {
        Some(error) => is_the_paths(error),
        // No file can be called that, or it has shrunk; but of a thread that has died it is not the reason.
        None => !matches!(error, object_store::Error::JoinError { .. }),
    }
}

/// Whether an error of this machine concerns a path. All others (EMFILE, EIO, ESTALE, and what is yet to come) may pass, or
/// strike every image.
fn is_the_paths(error: &io::Error) -> bool {
    use ErrorKind::{InvalidFilename, InvalidInput, IsADirectory, NotADirectory, NotFound, PermissionDenied};
    let kinds = [NotFound, PermissionDenied, NotADirectory, IsADirectory, InvalidFilename, InvalidInput];
    kinds.contains(&error.kind()) || error.raw_os_error() == Some(LOOP)
}

/// Whether a store refuses this image for what it is called or whose it is.
fn is_the_objects(error: &object_store::Error) -> bool {
    use object_store::Error::{InvalidPath, PermissionDenied};
    let malformed = ["KeyTooLong", "InvalidBucketName", "InvalidURI", "InvalidResourceName"];
    matches!(error, InvalidPath { .. } | PermissionDenied { .. })
        || malformed.iter().any(|code| error.to_string().contains(code))
}

#[cfg(test)]
mod tests {
    use std::error::Error as StdError;

    use super::*;

    fn local(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Result<Fetched> {
        let error = object_store::Error::Generic { store: "LocalFileSystem", source: source.into() };
        failed(&uri::parse("/data/a.jpg").unwrap(), error)
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_machine_that_fails_is_no_images_fault() {
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
        for (name, code, is_the_rows) in cases {
            let error = io::Error::from_raw_os_error(code);
            assert_eq!(is_the_paths(&error), is_the_rows, "{name}");
            match local(error) {
                Ok(image) => assert!(is_the_rows && image.unwrap_err().starts_with("fetch: /data/a.jpg: ")),
                Err(error) => {
                    let message = error.to_string();
                    assert!(!is_the_rows && message.starts_with("cannot read /data/a.jpg: "), "{message}");
                }
            }
        }
        let message = local(io::Error::from_raw_os_error(24)).unwrap_err().to_string();
        assert!(message.contains("ulimit -n"), "{message}");
    }

    #[test]
    fn a_name_that_no_file_can_have_is_the_rows_reason() {
        for error in [io::Error::from(ErrorKind::InvalidFilename), ErrorKind::InvalidInput.into()] {
            assert!(local(error).unwrap().is_err());
        }
        assert!(local("Filenames containing trailing '/#\\d+/' are not supported").unwrap().is_err());
    }
}
