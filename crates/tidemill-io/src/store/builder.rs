//! Builds the object_store client for a URI's scheme.

use std::sync::Arc;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::{ClientOptions, ObjectStore, ObjectStoreScheme};
use url::Url;

use crate::error::{Error, Result};
use crate::store::aws_profile::CREDENTIAL_PROCESS;
use crate::store::credential_process::CredentialProcess;
use crate::store::credentials::{apply_settings, is_plain_http_endpoint};
use crate::store::limits::Limits;

type Store = Arc<dyn ObjectStore>;
type Settings = [(String, String)];

/// Builds the store of a root such as `s3://bucket/`.
///
/// # Errors
/// [`Error::Uri`] if the scheme is unknown or the settings are invalid.
pub(super) fn build_store(root: &str, settings: &Settings, limits: &Limits) -> Result<Store> {
    let fail = |problem: String| Error::Uri { uri: root.into(), problem };
    let url = Url::parse(root).map_err(|e| fail(e.to_string()))?;
    // object_store would take some host names for S3 or Azure; here http(s) is always a plain web
    // server.
    let scheme = match url.scheme() {
        "http" | "https" => Ok(ObjectStoreScheme::Http),
        _ => ObjectStoreScheme::parse(&url).map(|(scheme, _)| scheme),
    };
    let client = limits.to_client_options(url.scheme() == "http" || is_plain_http_endpoint(settings));
    let store = match scheme {
        Ok(ObjectStoreScheme::AmazonS3) => build_s3(root, settings, limits, client),
        Ok(ObjectStoreScheme::GoogleCloudStorage) => build_google(root, settings, limits, client),
        Ok(ObjectStoreScheme::MicrosoftAzure) => build_azure(root, settings, limits, client),
        Ok(ObjectStoreScheme::Http) => build_http(root, limits, client),
        _ => {
            return Err(fail(format!(
                "the scheme `{}` is not known; give a local path, file://, s3://, gs://, az://, abfss:// or http(s)://",
                url.scheme()
            )));
        }
    };
    store.map_err(|e| fail(format!("cannot be opened: {e}")))
}

// A store passes its retry settings on to its credential provider. Requests for credentials should
// fail sooner, so each builder takes the provider from a second store, which has the shorter
// settings.

fn build_s3(
    root: &str,
    settings: &Settings,
    limits: &Limits,
    client: ClientOptions,
) -> object_store::Result<Store> {
    let builder = AmazonS3Builder::new().with_url(root).with_client_options(client);
    let builder = apply_settings(builder, settings, AmazonS3Builder::with_config);
    let builder = builder.with_retry(limits.to_retry_config());
    if let Some((_, command)) = settings.iter().find(|(name, _)| name == CREDENTIAL_PROCESS) {
        return Ok(Arc::new(builder.with_credentials(Arc::new(CredentialProcess::new(command))).build()?));
    }
    let provider = builder.clone().with_retry(limits.to_credentials_retry_config()).build()?;
    Ok(Arc::new(builder.with_credentials(provider.credentials().clone()).build()?))
}

fn build_google(
    root: &str,
    settings: &Settings,
    limits: &Limits,
    client: ClientOptions,
) -> object_store::Result<Store> {
    let builder = GoogleCloudStorageBuilder::new().with_url(root).with_client_options(client);
    let builder = apply_settings(builder, settings, GoogleCloudStorageBuilder::with_config);
    let builder = builder.with_retry(limits.to_retry_config());
    let provider = builder.clone().with_retry(limits.to_credentials_retry_config()).build()?;
    Ok(Arc::new(builder.with_credentials(provider.credentials().clone()).build()?))
}

fn build_azure(
    root: &str,
    settings: &Settings,
    limits: &Limits,
    client: ClientOptions,
) -> object_store::Result<Store> {
    let builder = MicrosoftAzureBuilder::new().with_url(root).with_client_options(client);
    let builder = apply_settings(builder, settings, MicrosoftAzureBuilder::with_config);
    let builder = builder.with_retry(limits.to_retry_config());
    let provider = builder.clone().with_retry(limits.to_credentials_retry_config()).build()?;
    Ok(Arc::new(builder.with_credentials(provider.credentials().clone()).build()?))
}

fn build_http(root: &str, limits: &Limits, client: ClientOptions) -> object_store::Result<Store> {
    let builder = HttpBuilder::new().with_url(root).with_client_options(client);
    Ok(Arc::new(builder.with_retry(limits.to_retry_config()).build()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_schemes_open_and_unknown_ones_are_refused_by_name() {
        let azure = [("azure_storage_account_name".to_owned(), "account".to_owned())];
        for root in
            ["s3://b/", "s3a://b/", "gs://b/", "az://c/", "abfss://c@a.dfs.core.windows.net/", "https://h/"]
        {
            build_store(root, &azure, &Limits::default()).unwrap();
        }
        let message = build_store("ftp://host/", &[], &Limits::default()).unwrap_err().to_string();
        assert!(message.contains("`ftp`") && message.contains("s3://"), "{message}");
    }
}
