//! Objects in S3: conditional puts, listings, multipart uploads, and reads over plain http.

use tidemill_io::{Location, block_on, uri};
use tidemill_testing::{Fault, S3Server};

use crate::support::{
    assert_one_concurrent_put_succeeds, assert_upload_appears_whole, open, repeating_bytes,
};

#[test]
fn exactly_one_concurrent_conditional_put_succeeds() {
    let server = S3Server::start(&["race"]);
    assert_one_concurrent_put_succeeds(&open(&server, "s3://race/folder"));
}

#[test]
fn listings_continue_after_a_page_of_1000_keys() {
    let server = S3Server::start(&["many"]);
    let location = open(&server, "s3://many/a");
    let keys: Vec<String> = (0..2345).map(|i| format!("{i:05}.json")).collect();
    keys.iter().for_each(|key| server.put("many", &format!("a/{key}"), "x"));
    server.put("many", "ab/other.json", "x");
    assert_eq!(location.list("").unwrap(), keys);
    assert_eq!(server.take_requests().len(), 3);
    let found = block_on(uri::parse("s3://many/a/0000[1-3].json").unwrap().expand()).unwrap();
    let found: Vec<_> = found.iter().map(|(uri, _)| uri.as_str()).collect();
    assert_eq!(found, ["s3://many/a/00001.json", "s3://many/a/00002.json", "s3://many/a/00003.json"]);
}

#[test]
fn listed_objects_are_readable_and_folder_markers_are_hidden() {
    let server = S3Server::start(&["console"]);
    let location = open(&server, "s3://console/data");
    for key in ["data/", "data/gpu[0]/", "data/gpu[0]/50%25#.json", "data/empty.txt"] {
        server.put("console", key, if key.ends_with(".json") { "hello" } else { "" });
    }
    let found = block_on(uri::parse("s3://console/data").unwrap().expand()).unwrap();
    let found: Vec<_> = found.iter().map(|(uri, _)| uri.as_str()).collect();
    assert_eq!(found, ["s3://console/data/empty.txt", "s3://console/data/gpu[0]/50%25#.json"]);
    let key = location.list("").unwrap().into_iter().find(|key| key.ends_with(".json")).unwrap();
    assert_eq!(location.get(&key).unwrap(), "hello");
}

#[test]
fn large_objects_are_uploaded_in_parts_and_appear_whole() {
    let server = S3Server::start(&["large"]);
    let location = open(&server, "s3://large");
    let whole = assert_upload_appears_whole(&location);
    location.put("put", whole.clone()).unwrap();
    assert_eq!(location.get_range("put", 7..11).unwrap(), whole.slice(7..11));
    location.delete("big").unwrap();
    assert_eq!(server.keys("large"), ["put"]);
    let parts = server.take_requests().iter().filter(|r| r.method == "PUT" && r.key == "put").count();
    assert_eq!(parts, 3, "20 MB in parts of 8 MiB");
}

#[test]
fn an_unfinished_upload_leaves_no_parts() {
    let server = S3Server::start(&["parts"]);
    let location = open(&server, "s3://parts");
    let begin_upload = || {
        let mut upload = location.upload("big");
        upload.write(repeating_bytes(9_000_000)).unwrap();
        upload
    };
    drop(begin_upload());
    assert_eq!(server.open_uploads(), 0, "dropped");
    // The first request starts the upload. The third sends the second part, or completes the
    // upload.
    for served in [1, 2, 3] {
        server.fail_next(std::iter::repeat_n(Fault::None, served).chain([Fault::Status(403)]));
        assert!(begin_upload().finish().is_err());
        assert_eq!((server.open_uploads(), server.keys("parts").len()), (0, 0), "after {served} requests");
    }
    begin_upload().finish().unwrap();
    assert_eq!((server.open_uploads(), server.keys("parts").len()), (0, 1));
}

#[test]
fn an_http_url_reads_one_file_and_cannot_be_written() {
    let server = S3Server::start(&["web", "public"]);
    let [(_, endpoint), ..] = server.settings();
    server.put("public", "a b/ü.parquet", "hello");
    let url = format!("{endpoint}/public/a%20b/%C3%BC.parquet");
    let address = uri::parse(&url).unwrap();
    let found = block_on(address.expand()).unwrap();
    assert_eq!((found[0].0.as_str(), found[0].1.size), (url.as_str(), 5));
    assert_eq!(block_on(address.get_ranges(&[0..1, 3..5], None)).unwrap(), ["h", "lo"]);
    server.take_requests();
    let url = format!("{endpoint}/web/a.parquet");
    let message = block_on(uri::parse(&url).unwrap().expand()).unwrap_err().to_string();
    assert!(message.contains(&url) && message.contains("403"), "{message}");
    let message = Location::open(&url).unwrap_err().to_string();
    assert!(message.contains("can only be read"), "{message}");
}
