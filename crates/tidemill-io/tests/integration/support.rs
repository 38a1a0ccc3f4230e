//! Opens locations on an S3 server that the test controls.

use std::time::Duration;

use bytes::Bytes;
use tidemill_io::{Limits, Location, store};
use tidemill_testing::S3Server;

/// The default limits with few retries and short pauses.
pub fn quick_limits() -> Limits {
    Limits {
        max_retries: 3,
        initial_backoff: Duration::from_millis(1),
        max_backoff: Duration::from_millis(5),
        ..Limits::default()
    }
}

/// Opens `uri` with the server's settings, some of them overridden.
pub fn open_with(server: &S3Server, uri: &str, overrides: &[(&str, &str)], limits: Limits) -> Location {
    let mut settings = server.settings().to_vec();
    settings.extend(overrides.iter().map(|&(name, value)| (name, value.to_owned())));
    store::connect(uri, &settings, limits).unwrap();
    Location::open(uri).unwrap()
}

/// Opens `uri` with the server's settings and [`quick_limits`].
pub fn open(server: &S3Server, uri: &str) -> Location {
    open_with(server, uri, &[], quick_limits())
}

/// `n` bytes in a repeating pattern.
pub fn repeating_bytes(n: usize) -> Bytes {
    (0..n).map(|i| (i % 251) as u8).collect()
}

/// Uploads an object of several parts as `big`, which is absent until the upload ends. Returns its bytes.
pub fn assert_upload_appears_whole(location: &Location) -> Bytes {
    let whole = repeating_bytes(20_000_000);
    let mut upload = location.upload("big");
    upload.write(whole.slice(..11_000_000)).unwrap();
    assert!(location.get_if_present("big").unwrap().is_none());
    upload.write(whole.slice(11_000_000..)).unwrap();
    assert_eq!(upload.finish().unwrap(), (20_000_000, tidemill_io::Checksum::compute(&whole)));
    assert_eq!(location.get("big").unwrap(), whole);
    whole
}

/// Puts objects from many threads at once, and finds of each the one content whose put succeeded.
pub fn assert_one_concurrent_put_succeeds(location: &Location) {
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
