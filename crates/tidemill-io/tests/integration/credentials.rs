//! Credentials: where they come from, and the advice when they are missing or wrong.

use std::ffi::OsString;
use std::process::Command;
use std::time::{Duration, Instant};

use tidemill_io::{Limits, Location, block_on, store, uri};
use tidemill_testing::{Request, S3Server};

use crate::support::{open_with, quick_limits, repeating_bytes};

#[test]
fn missing_credentials_are_reported_soon() {
    let limits = Limits { credentials_timeout: Duration::from_millis(200), ..Limits::default() };
    let settings = [("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1".to_owned())];
    store::connect("s3://nobody", &settings, limits).unwrap();
    let started = Instant::now();
    let message = Location::open("s3://nobody").unwrap().get("a").unwrap_err().to_string();
    assert!(started.elapsed() < Duration::from_secs(5) && message.contains("127.0.0.1:1"), "{message}");
}

#[test]
fn wrong_credentials_and_missing_buckets_come_with_advice() {
    let server = S3Server::start(&["secret", "stranger"]);
    let cases = [
        (
            "s3://secret/x",
            ("AWS_SECRET_ACCESS_KEY", "wrong"),
            "SignatureDoesNotMatch",
            "AWS_SECRET_ACCESS_KEY",
        ),
        ("s3://stranger/x", ("AWS_ACCESS_KEY_ID", "nobody"), "NotSignedUp", "AWS_ACCESS_KEY_ID"),
        ("s3://missing/x", ("AWS_REGION", "us-east-1"), "NoSuchBucket", "there is no such bucket"),
    ];
    for (uri, setting, code, advice) in cases {
        let location = open_with(&server, uri, &[setting], quick_limits());
        let results = [
            location.get_if_present("a").map(|_| ()),
            location.put("a", "x".into()),
            location.put_if_absent("a", "x".into()).map(|_| ()),
            location.list("").map(|_| ()),
            block_on(uri::parse(&format!("{uri}/*.parquet")).unwrap().expand()).map(|_| ()),
        ];
        for result in results {
            let message = result.unwrap_err().to_string();
            println!("{message}");
            assert!(message.contains(uri) && message.contains(code) && message.contains(advice), "{message}");
        }
        assert!(server.take_requests().len() <= 6, "refusals are not retried");
    }
}

#[test]
fn credentials_are_read_from_the_usual_environment_variables() {
    let server = S3Server::start(&["environment"]);
    server.put("environment", "greeting", "hello");
    let variables = server.settings().map(|(name, value)| (name, value.into()));
    assert_reads_in_environment(&[&variables[..], &[("TOKEN", "unrelated".into())]].concat());
}

#[test]
fn credentials_are_read_from_aws_profiles() {
    let server = S3Server::start(&["environment"]);
    server.put("environment", "greeting", "hello");
    let [(_, endpoint), (_, key), (_, secret), _] = server.settings();
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| std::fs::write(folder.path().join(name), text).unwrap();
    write("keys.json", format!(r#"{{"Version": 1, "AccessKeyId": "{key}", "SecretAccessKey": "{secret}"}}"#));
    let section = |name: &str, keys: String| {
        format!("[profile {name}]\nendpoint_url = {endpoint}\nregion = us-east-1\n{keys}\n")
    };
    let process = format!("credential_process = cat {}/keys.json", folder.path().display());
    write("config", section("keys", String::new()) + &section("process", process));
    write("credentials", format!("[keys]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n"));
    for profile in ["keys", "process"] {
        assert_reads_in_environment(&[
            ("AWS_PROFILE", profile.into()),
            ("AWS_CONFIG_FILE", folder.path().join("config").into()),
            ("AWS_SHARED_CREDENTIALS_FILE", folder.path().join("credentials").into()),
        ]);
    }
}

/// Runs the test below in a process that has these variables, and only those.
fn assert_reads_in_environment(variables: &[(&str, OsString)]) {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "credentials::reads_with_credentials_from_the_environment", "--ignored"])
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .envs(variables.iter().cloned())
        .output()
        .unwrap();
    assert!(child.status.success(), "{variables:?}: {}", String::from_utf8_lossy(&child.stdout));
}

#[test]
fn requests_carry_what_a_bucket_asks_for() {
    let server = S3Server::start(&["paid"]);
    let settings = [
        ("AWS_REQUEST_PAYER", "true"),
        ("AWS_SERVER_SIDE_ENCRYPTION", "aws:kms"),
        ("AWS_SSE_KMS_KEY_ID", "key-7"),
    ];
    let location = open_with(&server, "s3://paid", &settings, quick_limits());
    location.put_if_absent("a", "hello".into()).unwrap();
    location.get("a").unwrap();
    location.list("").unwrap();
    let mut upload = location.upload("big");
    upload.write(repeating_bytes(9_000_000)).unwrap();
    upload.finish().unwrap();
    let requests = server.take_requests();
    let carry = |request: &Request, name: &str, value: &str| {
        request.headers.get(name).is_some_and(|carried| carried == value)
    };
    for request in &requests {
        assert!(carry(request, "x-amz-request-payer", "requester"), "{request:?}");
    }
    // A multipart upload is encrypted as the request says that starts it.
    for (method, key) in [("PUT", "a"), ("POST", "big")] {
        let first = requests.iter().find(|request| request.method == method && request.key == key).unwrap();
        assert!(carry(first, "x-amz-server-side-encryption", "aws:kms"), "{first:?}");
        assert!(carry(first, "x-amz-server-side-encryption-aws-kms-key-id", "key-7"), "{first:?}");
    }
}

#[test]
#[ignore = "run by assert_reads_in_environment, in a process of its own"]
fn reads_with_credentials_from_the_environment() {
    assert_eq!(Location::open("s3://environment").unwrap().get("greeting").unwrap(), "hello");
}
