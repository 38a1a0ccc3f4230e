//! Downloads from web servers: URLs are sent as written, unusual answers are accepted, and
//! transient errors are retried.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tidemill_io::http::{self, DownloadError};
use tidemill_io::{Limits, runtime, store};
use tidemill_testing::{WebServer, web::ok};

/// The size limit of all downloads.
const MAX_BYTES: u64 = 1000;

fn get(url: &str) -> Result<Bytes, DownloadError> {
    runtime().unwrap().block_on(http::get(url, MAX_BYTES, &mut ()))
}

#[test]
fn urls_are_sent_exactly_as_written() {
    let server = WebServer::start(|_| ok(b"hello"));
    for (written, sent) in [
        ("/a.jpg?sig=x%2Fy+z&t=[1]", "/a.jpg?sig=x%2Fy+z&t=[1]"),
        ("/b[1]*.jpg", "/b[1]*.jpg"),
        ("//c//d.jpg", "//c//d.jpg"),
        ("/e%2Ff%E9.jpg", "/e%2Ff%E9.jpg"),
        ("/g/", "/g/"),
        ("/h.jpg#part", "/h.jpg"),
        ("", "/"),
    ] {
        assert_eq!(get(&format!("{}{written}", server.root())).unwrap(), "hello", "{written}");
        let heads = server.take_heads();
        assert!(heads[0].starts_with(&format!("GET {sent} HTTP/1.1\r\n")), "{heads:?}");
    }
    get(&server.root().replace("://", "://user:word@")).unwrap();
    let heads = server.take_heads().concat();
    assert!(heads.contains("authorization: Basic dXNlcjp3b3Jk\r\n") && !heads.contains('@'), "{heads}");
}

#[test]
fn unusual_headers_and_framing_are_accepted() {
    let answer = |headers: &[u8], body: &[u8]| [b"HTTP/1.1 200 OK\r\n", headers, b"\r\n\r\n", body].concat();
    let answers = [
        answer(b"transfer-encoding: chunked", b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"),
        answer(b"connection: close", b"hello"),
        answer(b"content-length: 5\r\nlast-modified: yesterday\r\netag: \"\xe9\"", b"hello"),
        answer(b"content-length: 5\r\ncontent-disposition: inline; filename=\xe9.jpg", b"hello"),
    ];
    let large = [answer(b"content-length: 1001", b""), answer(b"connection: close", &[0; 1001])];
    let (small, all) = (answers.len(), [&answers[..], &large].concat());
    let server = WebServer::start(move |head| {
        let number = head.split(['/', ' ']).nth(2).unwrap();
        all[number.parse::<usize>().unwrap()].clone()
    });
    for number in 0..small {
        assert_eq!(get(&format!("{}/{number}", server.root())).unwrap(), "hello", "{number}");
    }
    for number in small..small + large.len() {
        let error = get(&format!("{}/{number}", server.root())).unwrap_err();
        assert!(matches!(error, DownloadError::TooLarge(MAX_BYTES)), "{error}");
    }
}

type Answer = fn() -> Vec<u8>;

/// A server that gives these answers one after the other, and then repeats the last one.
fn serve_in_order(answers: &[Answer]) -> WebServer {
    let answers = answers.to_vec();
    let next = AtomicUsize::new(0);
    let server =
        WebServer::start(move |_| answers[next.fetch_add(1, Ordering::Relaxed).min(answers.len() - 1)]());
    let limits = Limits {
        max_retries: 2,
        initial_backoff: Duration::from_millis(1),
        max_backoff: Duration::from_secs(2),
        request_timeout: Duration::from_secs(1),
        ..Limits::default()
    };
    store::connect(&server.root(), &[], limits).unwrap();
    server
}

#[test]
fn transient_errors_are_retried() {
    let busy = || b"HTTP/1.1 503 Busy\r\nconnection: close\r\n\r\n".to_vec();
    let wait = || b"HTTP/1.1 429 Slowly\r\nconnection: close\r\nretry-after: 1\r\n\r\n".to_vec();
    let gone = || b"HTTP/1.1 404 Gone\r\nconnection: close\r\n\r\n".to_vec();
    let cut = || ok(b"hello")[..60].to_vec();
    let hang = || {
        sleep(Duration::from_secs(5));
        Vec::new()
    };
    let hello = || ok(b"hello");
    let cases: [(&[Answer], _, _, _); 7] = [
        (&[busy, cut, hello], 3, 0, "hello"),
        (&[wait, hello], 2, 1000, "hello"),
        (&[hang, hello], 2, 1000, "hello"),
        (&[gone], 1, 0, "there is no such file"),
        (&[busy], 3, 0, "503 Service Unavailable"),
        (&[hang], 2, 2000, "nothing came for 1s"),
        (&[cut], 3, 0, "body"),
    ];
    for (answers, requests, min_milliseconds, outcome) in cases {
        let server = serve_in_order(answers);
        let started = Instant::now();
        let got = match get(&format!("{}/a.jpg?sig=secret", server.root())) {
            Ok(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
            Err(failure) => failure.to_string(),
        };
        assert!(got.contains(outcome) && !got.contains("secret"), "{got}");
        assert_eq!(server.take_heads().len(), requests, "{outcome}");
        assert!(started.elapsed().as_millis() >= min_milliseconds, "{outcome}");
    }
}
