//! One image, wherever it lies.

use bytes::Bytes;
use object_store::ObjectStoreExt;
use tidemill_io::http::{self, Failure, Room};
use tidemill_io::{Address, redacted, shown, uri};

use super::room::Place;
use crate::decode::MAX_BYTES;
use crate::error::Result;

/// An image's bytes, or why there are none, as `kind: detail`.
pub type Fetched = std::result::Result<Bytes, String>;

/// Gets an image of a store, of this machine or of the web; what it holds has a place before it comes.
///
/// # Errors
/// If a store fails in a way that says nothing of the image.
pub async fn image(uri: &str, place: &mut Place) -> Result<Fetched> {
    match http::is_url(uri) {
        true => Ok(of_web(uri, place).await),
        false => of_store(uri, place).await,
    }
}

async fn of_web(url: &str, place: &mut Place) -> Fetched {
    let got = http::get(url, MAX_BYTES as u64, place).await;
    got.map_err(|failure| match failure {
        Failure::TooLarge(most) => format!("size: {} has more than {most} bytes", shown(url)),
        failure => format!("fetch: {}: {failure}", shown(url)),
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

/// What is wrong with one image is its row's reason. A store that does not answer is the unit's error: reasons are
/// committed for good.
fn failed(location: &Address, error: object_store::Error) -> Result<Fetched> {
    let uri = location.uri();
    match error {
        object_store::Error::NotFound { .. } => Ok(Err(format!("fetch: {uri}: there is no such image"))),
        error if location.is_local() || is_the_images(&error) => {
            Ok(Err(format!("fetch: {uri}: {}", redacted(&error.to_string()))))
        }
        source => Err(tidemill_io::Error::Storage { action: "read", uri, source }.into()),
    }
}

/// Whether a store refuses this image for what it is called or whose it is.
fn is_the_images(error: &object_store::Error) -> bool {
    use object_store::Error::{InvalidPath, PermissionDenied};
    let malformed = ["KeyTooLong", "InvalidBucketName", "InvalidURI", "InvalidResourceName"];
    matches!(error, InvalidPath { .. } | PermissionDenied { .. })
        || malformed.iter().any(|code| error.to_string().contains(code))
}
