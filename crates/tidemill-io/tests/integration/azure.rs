//! Azure Blob Storage, as Azurite emulates it. `make test-stores` starts that server, with an empty
//! container whose URI is in `TIDEMILL_TEST_AZURE`, and runs these tests: once directly, and once
//! through a proxy that fails some of the requests.

use bytes::Bytes;
use tidemill_io::{Location, block_on, uri};

use crate::support::{assert_one_concurrent_put_succeeds, assert_upload_appears_whole, repeating_bytes};

/// A folder of the container.
fn open(folder: &str) -> (String, Location) {
    let container = std::env::var("TIDEMILL_TEST_AZURE").expect("make test-stores sets TIDEMILL_TEST_AZURE");
    let uri = format!("{container}/{folder}");
    let location = Location::open(&uri).unwrap();
    (uri, location)
}

#[test]
#[ignore = "needs Azurite: make test-stores"]
fn exactly_one_concurrent_conditional_put_to_azure_succeeds() {
    assert_one_concurrent_put_succeeds(&open("race").1);
}

#[test]
#[ignore = "needs Azurite: make test-stores"]
fn azure_listings_continue_after_a_page_of_5000_keys() {
    let (uri, location) = open("many");
    let keys: Vec<String> = (0..5003).map(|i| format!("{i:05}.json")).collect();
    let put = |key: &String| location.put(key, "x".into()).unwrap();
    std::thread::scope(|scope| {
        keys.chunks(keys.len().div_ceil(16)).for_each(|keys| drop(scope.spawn(|| keys.iter().for_each(put))));
    });
    open("many-others").1.put("other.json", "x".into()).unwrap();
    assert_eq!(location.list("").unwrap(), keys);
    let found = block_on(uri::parse(&format!("{uri}/0000[1-3].json")).unwrap().expand()).unwrap();
    let found: Vec<_> = found.into_iter().map(|(uri, _)| uri).collect();
    assert_eq!(found, [1, 2, 3].map(|i| format!("{uri}/0000{i}.json")));
}

#[test]
#[ignore = "needs Azurite: make test-stores"]
fn azure_takes_large_objects_in_parts_and_gives_ranges_of_them() {
    let (_, location) = open("a b/ü");
    let whole = assert_upload_appears_whole(&location);
    location.put("put", whole.clone()).unwrap();
    assert_eq!(location.get_range("put", 7..11).unwrap(), whole.slice(7..11));
    assert_eq!(location.get_range("put", 5..19_000_000).unwrap(), whole.slice(5..19_000_000));
    assert_eq!(location.list_names("").unwrap(), ["big", "put"]);
}

#[test]
#[ignore = "needs Azurite: make test-stores"]
fn azure_deletes_replaces_and_drops_unfinished_uploads() {
    let (_, location) = open("deletes");
    location.put("a", "first".into()).unwrap();
    location.put("a", "second".into()).unwrap();
    assert!(!location.put_if_absent("a", "third".into()).unwrap());
    assert_eq!(location.get("a").unwrap(), "second");
    location.delete("a").unwrap();
    assert!(location.get_if_present("a").unwrap().is_none());
    assert!(location.put_if_absent("a", Bytes::new()).unwrap());
    assert_eq!(location.get("a").unwrap(), "");
    let mut upload = location.upload("b");
    upload.write(repeating_bytes(9_000_000)).unwrap();
    drop(upload);
    assert_eq!(location.list("").unwrap(), ["a"]);
}

#[test]
#[ignore = "needs Azurite: make test-stores"]
fn a_missing_container_is_reported_with_advice() {
    let location = Location::open("az://no-such-container/x").unwrap();
    let errors = [
        location.get("a").unwrap_err(),
        location.list("").unwrap_err(),
        location.put("a", "x".into()).unwrap_err(),
        location.put_if_absent("a", "x".into()).unwrap_err(),
    ];
    for message in errors.map(|error| error.to_string()) {
        let parts = ["az://no-such-container/x", "there is no such bucket", "AZURE_STORAGE_ACCOUNT_NAME"];
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    }
}
