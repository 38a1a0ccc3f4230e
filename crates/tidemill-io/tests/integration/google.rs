//! Google Cloud Storage's XML API: conditional puts, listings, uploads in parts, deletes and retries.

use tidemill_io::{Location, block_on, store, uri};
use tidemill_testing::{Fault, S3Server};

use crate::support::{assert_one_concurrent_put_succeeds, quick_limits, repeating_bytes};

fn open(server: &S3Server, uri: &str) -> Location {
    store::connect(uri, &server.google_settings(), quick_limits()).unwrap();
    Location::open(uri).unwrap()
}

#[test]
fn exactly_one_concurrent_conditional_put_to_google_succeeds() {
    let server = S3Server::start(&["race"]);
    assert_one_concurrent_put_succeeds(&open(&server, "gs://race/folder"));
}

#[test]
fn google_lists_pages_uploads_parts_and_deletes() {
    let server = S3Server::start(&["many"]);
    let location = open(&server, "gs://many/a b");
    let keys: Vec<String> = (0..2345).map(|i| format!("{i:05}.json")).collect();
    keys.iter().for_each(|key| server.put("many", &format!("a b/{key}"), "x"));
    assert_eq!(location.list("").unwrap(), keys);
    assert_eq!(server.take_requests().len(), 3, "pages of a thousand");
    let found = block_on(uri::parse("gs://many/a b/0000[1-2].json").unwrap().expand()).unwrap();
    let found: Vec<_> = found.iter().map(|(uri, _)| uri.as_str()).collect();
    assert_eq!(found, ["gs://many/a b/00001.json", "gs://many/a b/00002.json"]);

    let whole = repeating_bytes(20_000_000);
    let mut upload = location.upload("big");
    upload.write(whole.clone()).unwrap();
    assert!(location.get_if_present("big").unwrap().is_none());
    upload.finish().unwrap();
    assert_eq!(location.get("big").unwrap(), whole);
    assert_eq!(location.get_range("big", 7..11).unwrap(), whole.slice(7..11));
    location.delete("big").unwrap();
    assert!(location.get_if_present("big").unwrap().is_none());
    assert_eq!(server.open_uploads(), 0);
}

#[test]
fn failing_requests_to_google_are_retried() {
    let server = S3Server::start(&["faulty"]);
    let location = open(&server, "gs://faulty/x");
    let whole = repeating_bytes(300_000);
    for fault in [Fault::Status(500), Fault::Status(503), Fault::Refuse, Fault::BreakBody(1000)] {
        server.fail_next([fault, fault]);
        location.put("a", whole.clone()).unwrap();
        server.fail_next([fault, fault]);
        assert_eq!(location.get("a").unwrap(), whole, "{fault:?}");
        server.fail_next([fault]);
        assert_eq!(location.list("").unwrap(), ["a"], "{fault:?}");
        server.stop_failing();
    }
    // The put arrived, its answer did not.
    server.fail_next([Fault::LoseAnswer]);
    location.put_if_absent("b", "mine".into()).unwrap();
    assert_eq!(location.get("b").unwrap(), "mine");
    assert!(!location.put_if_absent("b", "theirs".into()).unwrap());
    let message = open(&server, "gs://missing/x").get("a").unwrap_err().to_string();
    assert!(message.contains("there is no such bucket"), "{message}");
}
