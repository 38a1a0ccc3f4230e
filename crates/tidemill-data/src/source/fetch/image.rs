//! One image, wherever it lies.

use bytes::Bytes;
use object_store::ObjectStoreExt;
use tidemill_io::http::{self, Failure, Room};
use tidemill_io::{redacted, shown, uri};

use super::room::Place;
use crate::decode::MAX_BYTES;

/// An image's bytes, or why there are none, as `kind: detail`.
pub type Fetched = Result<Bytes, String>;

/// Gets an image of a store, of this machine or of the web; what it holds has a place before it comes.
pub async fn image(uri: &str, place: &mut Place) -> Fetched {
    match http::is_url(uri) {
        true => of_web(uri, place).await,
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

async fn of_store(uri: &str, place: &mut Place) -> Fetched {
    let (location, path) = uri::parse(uri)
        .and_then(|location| location.key().map(|path| (location, path)))
        .map_err(|e| format!("fetch: {e}"))?;
    let failed = |error| match error {
        object_store::Error::NotFound { .. } => format!("fetch: {uri}: there is no such image"),
        other => format!("fetch: {uri}: {}", redacted(&other.to_string())),
    };
    let response = location.store.get(&path).await.map_err(failed)?;
    let size = response.meta.size;
    if size > MAX_BYTES as u64 {
        return Err(format!("size: {uri} has {size} bytes, more than {MAX_BYTES}"));
    }
    place.wait_for(size).await;
    response.bytes().await.map_err(failed)
}
