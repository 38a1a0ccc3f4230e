//! The root of a URI, by which connections are shared.

use crate::error::{Error, Result};

/// Splits a URI into its root, such as `s3://bucket/`, and the path below it.
///
/// # Errors
/// [`Error::Uri`] if it has no scheme.
pub(crate) fn split_root(uri: &str) -> Result<(String, String)> {
    let (scheme, rest) = uri
        .split_once("://")
        .ok_or_else(|| Error::Uri { uri: uri.into(), problem: "is a local path, not a bucket".into() })?;
    let (bucket, path) = rest.split_once('/').unwrap_or((rest, ""));
    Ok((format!("{scheme}://{bucket}/"), path.to_owned()))
}
