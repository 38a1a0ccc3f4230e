//! Google Cloud Storage's XML API. It is S3's apart from a few headers, so requests are translated.
//! <https://cloud.google.com/storage/docs/xml-api/overview>

use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HeaderValue, IF_NONE_MATCH};
use s3s::HttpRequest;

/// Where the API is below the server's address. No bucket can have this name.
pub const PREFIX: &str = "/_google";
/// The key of a service account for emulators: requests carry no token.
pub const SERVICE_ACCOUNT: &str =
    r#"{"private_key": "", "private_key_id": "", "client_email": "", "disable_oauth": true}"#;
/// Marks translated requests.
const MARK: &str = "x-is-google";
/// Google's condition of a put: 0 for an object that does not exist yet.
const GENERATION_MATCH: &str = "x-goog-if-generation-match";

/// Turns a request below [`PREFIX`] into one of S3, and leaves others as they are.
pub fn translate(request: &mut HttpRequest) {
    let target = request.uri().path_and_query().map_or("", |target| target.as_str());
    let Some(target) = target.strip_prefix(PREFIX) else { return };
    *request.uri_mut() = target.parse().unwrap();
    let headers = request.headers_mut();
    headers.insert(MARK, HeaderValue::from_static("true"));
    // Writes have an empty token, reads none.
    headers.remove(AUTHORIZATION);
    if let Some(generation) = headers.remove(GENERATION_MATCH) {
        assert_eq!(generation, "0", "only the generation 0, of no object, is known here");
        headers.insert(IF_NONE_MATCH, HeaderValue::from_static("*"));
    }
}

/// Whether a request was in Google's API.
pub fn is_google(headers: &HeaderMap) -> bool {
    headers.contains_key(MARK)
}
