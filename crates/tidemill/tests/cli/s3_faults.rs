//! Preprocessing in a bucket that is killed, or whose requests fail at random: the dataset is that
//! of an undisturbed run.

use tidemill_testing::Fault;

use crate::common::{verified_digest, wait_until};
use crate::s3::RemoteRun;

#[test]
fn killed_run_in_a_bucket_resumes_with_the_missing_units() {
    let remote = RemoteRun::new("killed", 512);
    let whole = remote.digest_of(&remote.uri("whole"), &[]);
    let mut child = remote.start();
    wait_until("two commits", || remote.count_commits() >= 2 || child.try_wait().unwrap().is_some());
    child.kill().unwrap();
    child.wait().unwrap();
    let before = remote.count_commits();
    assert!(before >= 2);

    let (code, result) = remote.json(&remote.preprocess(&[]));
    assert_eq!(code, 0, "{result}");
    let units = |name: &str| result["units"][name].as_u64().unwrap() as usize;
    assert_eq!(units("done") + before, units("total"), "{result}");
    assert_eq!(verified_digest(&remote.uri("out"), remote.rows), whole);

    // The files of the killed run are garbage, and the only garbage.
    let (code, result) = remote.json(&["gc", &remote.run, "--older-than-hours", "0"]);
    assert_eq!(code, 0, "{result}");
    assert_eq!(remote.json(&["gc", &remote.run, "--older-than-hours", "0"]).1["removed"]["objects"], 0);
    assert_eq!(verified_digest(&remote.uri("out"), remote.rows), whole);
}

/// Random faults from a seed that is printed. One request in four fails.
fn draw_faults(requests: u64) -> impl Iterator<Item = Fault> {
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
fn run_survives_random_store_faults() {
    const REQUESTS: u64 = 10_000;
    let remote = RemoteRun::new("faulty", 256);
    let whole = remote.digest_of(&remote.uri("whole"), &[]);
    remote.server.take_requests();
    remote.server.fail_next(draw_faults(REQUESTS));
    let (code, result) = remote.json(&remote.preprocess(&[]));
    let left = remote.server.stop_failing();
    assert_eq!(code, 0, "{result}");
    let requests = remote.server.take_requests();
    let failed = requests.iter().filter(|request| request.status.is_none_or(|status| status >= 429)).count();
    println!("{failed} of {} requests failed", requests.len());
    assert!(failed >= 5 && left > 0, "{failed} of {} requests failed, {left} faults left", requests.len());
    assert_eq!(verified_digest(&remote.uri("out"), remote.rows), whole);
}
