//! Statistics of features, collected in batches and stored.

use std::path::Path;
use tch::{Device, Kind, Tensor};
use tidemill_eval::statistics::{Accumulator, FeatureStatistics, Moments};

/// The mean is large, where one-pass formulas without a shift lose the covariance.
#[test]
fn statistics_of_batches_are_those_of_all_and_survive_a_file() {
    tch::manual_seed(i64::try_from(tidemill_testing::seed()).unwrap());
    let features = Tensor::randn([103, 7], (Kind::Float, Device::Cpu)) + 1000.0;
    let mut accumulator = Accumulator::new("net", 7, 20);
    for (numbers, batch) in (0..103u64).collect::<Vec<_>>().chunks(10).zip(features.split(10, 0)) {
        accumulator.add(numbers, &batch).unwrap();
    }
    let statistics = accumulator.finish().unwrap();
    let expected = Moments::of(&features).unwrap();
    assert!(statistics.moments.mean.allclose(&expected.mean, 1e-12, 0.0, false));
    assert!(statistics.moments.covariance.allclose(&expected.covariance, 1e-9, 1e-9, false));
    let numpy = features.to_kind(Kind::Double).transpose(0, 1).cov(1, None::<Tensor>, None::<Tensor>);
    assert!(expected.covariance.allclose(&numpy, 1e-9, 1e-9, false));
    assert_eq!(statistics.sample.size(), [20, 7]);

    let bytes = statistics.to_bytes("abc").unwrap();
    let read = |bytes: &[u8], network| FeatureStatistics::from_bytes(bytes, network, Path::new("x"));
    let message = read(&bytes, "other").unwrap_err().to_string();
    assert!(message.contains("of another network"), "{message}");
    let read_back = read(&bytes, "net").unwrap();
    assert_eq!(read_back.moments.count, 103);
    for (a, b) in [
        (&read_back.moments.mean, &statistics.moments.mean),
        (&read_back.moments.covariance, &statistics.moments.covariance),
        (&read_back.sample, &statistics.sample),
    ] {
        assert!(a.equal(b));
    }
    for damaged in [&bytes[..bytes.len() - 1], &bytes[..4], b"hello, this is no file"] {
        let message = read(damaged, "net").unwrap_err().to_string();
        assert!(message.starts_with("x: not statistics of features"), "{message}");
    }
}
