//! Retries of S3 requests: what is retried, for how long, and the error when nothing helps.

use std::time::{Duration, Instant};

use tidemill_io::Limits;
use tidemill_testing::{Fault, S3Server};

use crate::support::{open, open_with, quick_limits, repeating_bytes};

#[test]
fn transient_failures_are_retried() {
    let server = S3Server::start(&["faulty"]);
    let location = open(&server, "s3://faulty/x");
    let whole = repeating_bytes(300_000);
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
fn timeouts_are_retried() {
    let server = S3Server::start(&["slow"]);
    let limits = Limits { request_timeout: Duration::from_millis(500), ..quick_limits() };
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
fn a_broken_body_continues_where_it_broke() {
    let server = S3Server::start(&["broken"]);
    let location = open(&server, "s3://broken");
    server.put("broken", "a", repeating_bytes(100_000));
    server.fail_next([Fault::BreakBody(40_000), Fault::BreakBody(50_000)]);
    assert_eq!(location.get("a").unwrap(), repeating_bytes(100_000));
    let served: u64 = server.take_requests().iter().map(|request| request.bytes).sum();
    assert_eq!(served, 100_000);
}

#[test]
fn a_large_object_may_take_longer_than_one_retry_timeout() {
    let server = S3Server::start(&["long"]);
    let limits = Limits {
        range_bytes: 10_000,
        max_retries: 60,
        retry_timeout: Duration::from_millis(400),
        ..quick_limits()
    };
    let location = open_with(&server, "s3://long", &[], limits);
    server.put("long", "a", repeating_bytes(105_000));
    server.put("long", "small", repeating_bytes(10_000));
    server.delay_all(Duration::from_millis(40));
    server.fail_next([Fault::BreakBody(5_000); 100]);
    assert_eq!(location.get("a").unwrap(), repeating_bytes(105_000));
    server.stop_failing();
    server.take_requests();
    assert_eq!(location.get("small").unwrap(), repeating_bytes(10_000));
    assert_eq!(server.take_requests().len(), 1);
}

#[test]
fn a_conditional_put_is_retried_when_its_answer_is_lost() {
    let server = S3Server::start(&["lost"]);
    let location = open(&server, "s3://lost");
    // Nothing arrived: the retry succeeds.
    server.fail_next([Fault::Refuse, Fault::Status(500)]);
    assert!(location.put_if_absent("a", "mine".into()).unwrap());
    // The put arrived, its answer did not: the object exists, and its content shows whose it is.
    server.fail_next([Fault::LoseAnswer]);
    location.put_if_absent("b", "mine".into()).unwrap();
    assert_eq!(location.get("b").unwrap(), "mine");
    assert!(!location.put_if_absent("b", "theirs".into()).unwrap());
}

#[test]
fn a_permanent_failure_is_reported_with_its_cause() {
    let server = S3Server::start(&["down"]);
    let location = open(&server, "s3://down/x");
    server.put("down", "x/a", repeating_bytes(10));
    for fault in [Fault::Status(503), Fault::Refuse] {
        server.fail_next([fault; 100]);
        let message = location.get("a").unwrap_err().to_string();
        println!("{message}");
        assert_eq!(100 - server.stop_failing(), 4, "one attempt and three retries");
        for part in ["cannot read s3://down/x/a: ", "3 retries", "AWS_ENDPOINT_URL"] {
            assert!(message.contains(part), "{part}: {message}");
        }
    }
}

#[test]
fn backoff_grows_so_that_retries_last_until_the_timeout() {
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
