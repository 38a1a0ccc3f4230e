//! Object storage against a real S3 server: conditional puts, long listings, large uploads, what is tried again, and
//! what is said when nothing helps.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::process::Command;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tidemill_io::{Limits, Location, block_on, store, uri};
use tidemill_testing::{Fault, S3Server};

/// As in earnest, but with pauses that a test can wait for.
fn limits() -> Limits {
    Limits {
        max_retries: 3,
        initial_backoff: Duration::from_millis(1),
        max_backoff: Duration::from_millis(5),
        ..Limits::default()
    }
}

/// Opens `uri` with the server's settings, some of them replaced.
fn open_with(server: &S3Server, uri: &str, other: &[(&str, &str)], limits: Limits) -> Location {
    let mut settings = server.settings().to_vec();
    settings.extend(other.iter().map(|&(name, value)| (name, value.to_owned())));
    store::connect(uri, &settings, limits).unwrap();
    Location::open(uri).unwrap()
}

fn open(server: &S3Server, uri: &str) -> Location {
    open_with(server, uri, &[], limits())
}

fn bytes(n: usize) -> Bytes {
    (0..n).map(|i| (i % 251) as u8).collect()
}

#[test]
fn one_of_many_conditional_puts_wins() {
    let server = S3Server::start(&["race"]);
    let location = open(&server, "s3://race/folder");
    for round in 0..20 {
        let key = format!("commits/{round}.json");
        let won: Vec<bool> = std::thread::scope(|scope| {
            let put = |i: u8| location.put_if_absent(&key, Bytes::from(vec![i])).unwrap();
            let threads: Vec<_> = (0..16).map(|i| scope.spawn(move || put(i))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(won.iter().filter(|won| **won).count(), 1);
        let winner = won.iter().position(|won| *won).unwrap();
        assert_eq!(location.get(&key).unwrap()[0] as usize, winner);
    }
}

#[test]
fn listings_go_on_after_a_thousand_keys() {
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
fn what_is_listed_can_be_read_but_for_markers_of_folders() {
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
fn large_objects_go_up_in_parts_and_appear_whole() {
    let server = S3Server::start(&["large"]);
    let location = open(&server, "s3://large");
    let whole = bytes(20_000_000);
    let mut upload = location.upload("big");
    upload.write(whole.slice(..11_000_000)).unwrap();
    assert!(location.get_if_present("big").unwrap().is_none());
    upload.write(whole.slice(11_000_000..)).unwrap();
    assert_eq!(upload.finish().unwrap(), (20_000_000, tidemill_io::Checksum::compute(&whole)));
    assert_eq!(location.get("big").unwrap(), whole);
    location.put("put", whole.clone()).unwrap();
    assert_eq!(location.get_range("put", 7..11).unwrap(), whole.slice(7..11));
    location.delete("big").unwrap();
    assert_eq!(server.keys("large"), ["put"]);
    let parts = server.take_requests().iter().filter(|r| r.method == "PUT" && r.key == "put").count();
    assert_eq!(parts, 3, "20 MB in parts of 8 MiB");
}

#[test]
fn an_upload_that_comes_to_nothing_leaves_no_parts() {
    let server = S3Server::start(&["parts"]);
    let location = open(&server, "s3://parts");
    let begun = || {
        let mut upload = location.upload("big");
        upload.write(bytes(9_000_000)).unwrap();
        upload
    };
    drop(begun());
    assert_eq!(server.open_uploads(), 0, "dropped");
    // The first request begins the upload; the third is the second part, or makes the object of them.
    for good in [1, 2, 3] {
        server.fail_next(std::iter::repeat_n(Fault::None, good).chain([Fault::Status(403)]));
        assert!(begun().finish().is_err());
        assert_eq!((server.open_uploads(), server.keys("parts").len()), (0, 0), "after {good} requests");
    }
    begun().finish().unwrap();
    assert_eq!((server.open_uploads(), server.keys("parts").len()), (0, 1));
}

#[test]
fn what_fails_for_a_while_is_tried_again() {
    let server = S3Server::start(&["faulty"]);
    let location = open(&server, "s3://faulty/x");
    let whole = bytes(300_000);
    let faults =
        [Fault::Status(500), Fault::Status(503), Fault::Refuse, Fault::BreakBody(0), Fault::BreakBody(1000)];
    for fault in faults {
        server.fail_next([fault, fault]);
        location.put("a", whole.clone()).unwrap();
        server.fail_next([fault, fault]);
        assert_eq!(location.get("a").unwrap(), whole, "{fault:?}");
        server.fail_next([fault, fault]);
        assert_eq!(location.get_range("a", 5..200_000).unwrap(), whole.slice(5..200_000), "{fault:?}");
        server.fail_next([fault]);
        assert_eq!(location.list("").unwrap(), ["a"], "{fault:?}");
        server.stop_failing();
    }
}

#[test]
fn what_takes_too_long_is_tried_again() {
    let server = S3Server::start(&["slow"]);
    let limits = Limits { request_timeout: Duration::from_millis(500), ..limits() };
    let location = open_with(&server, "s3://slow", &[], limits);
    let delay = Fault::Delay(Duration::from_secs(5));
    server.fail_next([delay]);
    location.put("a", "hello".into()).unwrap();
    server.fail_next([delay]);
    assert_eq!(location.get("a").unwrap(), "hello");
    server.fail_next([delay]);
    assert!(!location.put_if_absent("a", "theirs".into()).unwrap());
    server.fail_next([delay; 100]);
    let message = location.get("a").unwrap_err().to_string();
    println!("{message}");
    assert!(message.contains("s3://slow/a") && message.contains("3 retries"), "{message}");
}

#[test]
fn a_body_that_breaks_goes_on_where_it_broke() {
    let server = S3Server::start(&["broken"]);
    let location = open(&server, "s3://broken");
    server.put("broken", "a", bytes(100_000));
    server.fail_next([Fault::BreakBody(40_000), Fault::BreakBody(50_000)]);
    assert_eq!(location.get("a").unwrap(), bytes(100_000));
    let served: u64 = server.take_requests().iter().map(|request| request.bytes).sum();
    assert_eq!(served, 100_000);
}

#[test]
fn a_large_object_may_take_longer_than_its_requests() {
    let server = S3Server::start(&["long"]);
    let limits = Limits { range_bytes: 10_000, max_retries: 60, retry_timeout: Duration::from_millis(400), ..limits() };
    let location = open_with(&server, "s3://long", &[], limits);
    server.put("long", "a", bytes(105_000));
    server.put("long", "small", bytes(10_000));
    server.delay_all(Duration::from_millis(40));
    server.fail_next([Fault::BreakBody(5_000); 100]);
    assert_eq!(location.get("a").unwrap(), bytes(105_000));
    server.stop_failing();
    server.take_requests();
    assert_eq!(location.get("small").unwrap(), bytes(10_000));
    assert_eq!(server.take_requests().len(), 1);
}

#[test]
fn a_conditional_put_whose_answer_is_lost_is_tried_again() {
    let server = S3Server::start(&["lost"]);
    let location = open(&server, "s3://lost");
    // Nothing arrived: the next try wins.
    server.fail_next([Fault::Refuse, Fault::Status(500)]);
    assert!(location.put_if_absent("a", "mine".into()).unwrap());
    // The put arrived, its answer did not: the object is there, and it says whose it is.
    server.fail_next([Fault::LoseAnswer]);
    location.put_if_absent("b", "mine".into()).unwrap();
    assert_eq!(location.get("b").unwrap(), "mine");
    assert!(!location.put_if_absent("b", "theirs".into()).unwrap());
}

#[test]
fn what_keeps_failing_is_given_up_with_a_reason() {
    let server = S3Server::start(&["down"]);
    let location = open(&server, "s3://down/x");
    server.put("down", "x/a", bytes(10));
    for fault in [Fault::Status(503), Fault::Refuse] {
        server.fail_next([fault; 100]);
        let message = location.get("a").unwrap_err().to_string();
        println!("{message}");
        assert_eq!(100 - server.stop_failing(), 4, "a try and three more");
        for part in ["cannot read s3://down/x/a: ", "3 retries", "AWS_ENDPOINT_URL"] {
            assert!(message.contains(part), "{part}: {message}");
        }
    }
}

#[test]
fn pauses_grow_so_that_the_time_for_retries_is_used() {
    let server = S3Server::start(&["patient"]);
    let limits = Limits {
        initial_backoff: Duration::from_millis(1),
        max_backoff: Duration::from_millis(100),
        retry_timeout: Duration::from_millis(500),
        ..Limits::default()
    };
    let location = open_with(&server, "s3://patient", &[], limits);
    server.fail_next([Fault::Status(503); 100]);
    let started = Instant::now();
    let message = location.get("a").unwrap_err().to_string();
    assert!(started.elapsed() > Duration::from_millis(500) && message.contains("503"), "{message}");
}

#[test]
fn that_nobody_gives_credentials_is_soon_said() {
    let limits = Limits { credentials_timeout: Duration::from_millis(200), ..Limits::default() };
    let nobody = [("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1".to_owned())];
    store::connect("s3://stranger", &nobody, limits).unwrap();
    let started = Instant::now();
    let message = Location::open("s3://stranger").unwrap().get("a").unwrap_err().to_string();
    assert!(started.elapsed() < Duration::from_secs(5) && message.contains("127.0.0.1:1"), "{message}");
}

#[test]
fn wrong_credentials_and_missing_buckets_say_what_to_do() {
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
        let location = open_with(&server, uri, &[setting], limits());
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
        assert!(server.take_requests().len() <= 6, "refusals are not tried again");
    }
}

#[test]
fn the_usual_variables_are_enough() {
    let server = S3Server::start(&["environment"]);
    server.put("environment", "greeting", "hello");
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "reads_with_the_environments_credentials", "--ignored"])
        .envs(server.settings())
        .env("TOKEN", "nothing of ours")
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
}

#[test]
#[ignore = "run by the_usual_variables_are_enough in a process with an environment of its own"]
fn reads_with_the_environments_credentials() {
    assert_eq!(Location::open("s3://environment").unwrap().get("greeting").unwrap(), "hello");
}

#[test]
fn http_reads_one_file_and_writes_none() {
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
