//! A run in a bucket that is killed, and one whose requests fail now and then: both end as an undisturbed one does.

use tidemill_testing::Fault;

use crate::common::{digest, wait_until};
use crate::s3::Remote;

#[test]
fn a_killed_run_in_a_bucket_goes_on_where_it_stopped() {
    let remote = Remote::new("killed", 512);
    let whole = remote.digest_of(&remote.uri("whole"), &[]);
    let mut child = remote.start();
    wait_until("two commits", || remote.commits() >= 2 || child.try_wait().unwrap().is_some());
    child.kill().unwrap();
    child.wait().unwrap();
    let before = remote.commits();
    assert!(before >= 2);

    let (code, result) = remote.json(&remote.preprocess(&[]));
    assert_eq!(code, 0, "{result}");
    let units = |name: &str| result["units"][name].as_u64().unwrap() as usize;
    assert_eq!(units("done") + before, units("total"), "{result}");
    assert_eq!(digest(&remote.uri("out"), remote.rows), whole);

    // What the killed run left is garbage, and the only garbage.
    let (code, result) = remote.json(&["gc", &remote.run, "--older-than-hours", "0"]);
    assert_eq!(code, 0, "{result}");
    assert_eq!(remote.json(&["gc", &remote.run, "--older-than-hours", "0"]).1["removed"]["objects"], 0);
    assert_eq!(digest(&remote.uri("out"), remote.rows), whole);
}

/// Faults among good answers, from a seed that is printed: one request in four fails somehow.
fn faults(requests: u64) -> impl Iterator<Item = Fault> {
    let seed = tidemill_testing::seed();
    let faults = [
        Fault::Status(500),
        Fault::Status(503),
        Fault::Status(429),
        Fault::Refuse,
        Fault::LoseAnswer,
        Fault::BreakBody(100),
    ];
    (0..requests).map(move |i| {
        let hash = blake3::hash(format!("{seed} {i}").as_bytes());
        let draw = u32::from_le_bytes(*hash.as_bytes().first_chunk().unwrap()) as usize;
        *faults.get(draw % (4 * faults.len())).unwrap_or(&Fault::None)
    })
}

#[test]
fn a_run_survives_a_store_that_fails_now_and_then() {
    const REQUESTS: u64 = 10_000;
    let remote = Remote::new("faulty", 256);
    let whole = remote.digest_of(&remote.uri("whole"), &[]);
    remote.server.take_requests();
    remote.server.fail_next(faults(REQUESTS));
    let (code, result) = remote.json(&remote.preprocess(&[]));
    let left = remote.server.stop_failing();
    assert_eq!(code, 0, "{result}");
    let requests = remote.server.take_requests();
    let failed = requests.iter().filter(|request| request.status.is_none_or(|status| status >= 429)).count();
    println!("{failed} of {} requests failed", requests.len());
    assert!(failed >= 5 && left > 0, "{failed} of {} requests failed, {left} faults left", requests.len());
    assert_eq!(digest(&remote.uri("out"), remote.rows), whole);
}
