//! Credentials and other settings of stores, which come from environment variables.

use std::str::FromStr;

/// Selects the settings for stores among environment variables. Only names with a provider's prefix
/// count: object_store would also read a variable `TOKEN` or `REGION`.
pub(super) fn select_settings(variables: impl Iterator<Item = (String, String)>) -> Vec<(String, String)> {
    variables
        .map(|(name, value)| (name.to_lowercase(), value))
        .filter(|(name, _)| ["aws_", "google_", "azure_"].iter().any(|prefix| name.starts_with(prefix)))
        .collect()
}

/// Whether the settings name an endpoint without TLS, like those of test servers and of stores
/// within a cluster.
pub(super) fn is_plain_http_endpoint(settings: &[(String, String)]) -> bool {
    let endpoints = [
        "aws_endpoint",
        "aws_endpoint_url",
        "aws_endpoint_url_s3",
        "azure_endpoint",
        "azure_storage_endpoint",
        "google_base_url",
    ];
    settings.iter().any(|(name, value)| endpoints.contains(&name.as_str()) && value.starts_with("http://"))
}

/// Passes settings to a store's builder. It ignores those that the store does not know, such as
/// other providers' settings.
pub(super) fn apply_settings<B, K: FromStr>(
    builder: B,
    settings: &[(String, String)],
    set: fn(B, K, String) -> B,
) -> B {
    let known = settings.iter().filter_map(|(name, value)| Some((name.parse().ok()?, value.clone())));
    known.fold(builder, |builder, (key, value)| set(builder, key, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_variables_with_a_providers_prefix_are_settings() {
        let variables =
            [("AWS_REGION", "eu-west-1"), ("TOKEN", "x"), ("Google_Service_Account", "y"), ("PATH", "z")];
        let settings =
            select_settings(variables.iter().map(|(name, value)| (name.to_string(), value.to_string())));
        let names: Vec<_> = settings.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["aws_region", "google_service_account"]);
    }

    #[test]
    fn an_endpoint_without_tls_needs_no_further_variable() {
        for (name, value, is_plain) in [
            ("aws_endpoint_url", "http://localhost:9000", true),
            ("aws_endpoint_url_s3", "http://localhost:9000", true),
            ("aws_endpoint_url", "https://s3.example.com", false),
            ("google_base_url", "http://localhost:4443", true),
            ("aws_metadata_endpoint", "http://169.254.169.254", false),
        ] {
            let settings = [(name.to_owned(), value.to_owned())];
            assert_eq!(is_plain_http_endpoint(&settings), is_plain, "{name}={value}");
        }
    }
}
