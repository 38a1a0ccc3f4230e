//! Distances between sets of features.

use super::cases::{assert_near, json, tensors};
use tch::{Device, Kind, Tensor};
use tidemill_eval::metrics::{FrechetReference, cmmd, kid, neighbour_scores};
use tidemill_eval::statistics::Moments;

fn frechet_distance(generated: &Moments, reference: &Moments) -> f64 {
    FrechetReference::new(reference).unwrap().distance(generated).unwrap()
}

fn number(value: &serde_json::Value, path: &str) -> f64 {
    value.pointer(path).and_then(serde_json::Value::as_f64).unwrap_or_else(|| panic!("{path}"))
}

#[test]
fn frechet_distances_agree_with_torch_fidelity_pytorch_fid_and_torchmetrics() {
    let expected = json("metrics.json");
    for case in ["wide", "narrow"] {
        let features = tensors(&format!("features-{case}.safetensors"));
        let [generated, reference] =
            ["generated", "reference"].map(|name| Moments::of(&features[name]).unwrap());
        let found = frechet_distance(&generated, &reference);
        for peer in ["torch_fidelity", "pytorch_fid", "torchmetrics"] {
            let peer_value = number(&expected, &format!("/{case}/fid/{peer}"));
            assert_near(&format!("FID of {case} features, {peer}"), found, peer_value, 1e-3);
        }
    }
}

/// One subset of all images has no randomness, so the value is exact; smaller subsets are drawn by
/// other generators, so their means agree within four standard errors.
#[test]
fn kid_agrees_with_torch_fidelity() {
    let expected = json("metrics.json");
    let features = tensors("features-wide.safetensors");
    let generated = &features["generated"];
    let all = generated.size()[0];
    let reference = &features["reference"].narrow(0, 0, all);
    let whole = kid(generated, reference, 2, all as usize, 1).unwrap();
    assert_near("KID of all", whole.mean, number(&expected, "/wide/kid/all"), 1e-4);
    assert!(whole.std < 1e-9 * whole.mean.abs());
    let (subsets, size) = (number(&expected, "/wide/kid/subsets"), number(&expected, "/wide/kid/size"));
    let found = kid(generated, reference, subsets as usize, size as usize, 1).unwrap();
    let (mean, std) = (number(&expected, "/wide/kid/mean"), number(&expected, "/wide/kid/std"));
    let error = (found.mean - mean).abs() / (std * (2.0 / subsets).sqrt());
    println!("KID of subsets: {found:?}, torch-fidelity {mean} {std}: {error:.1} standard errors");
    assert!(error < 4.0);
    assert_near("deviation of KID", found.std, std, 0.65);
}

#[test]
fn cmmd_agrees_with_double_precision_numpy() {
    let expected = json("metrics.json");
    let features = tensors("features-unit.safetensors");
    let found = cmmd(&features["generated"], &features["reference"]).unwrap();
    assert_near("CMMD", found, number(&expected, "/unit/cmmd"), 1e-6);
}

#[test]
fn precision_recall_density_and_coverage_agree_with_brute_force_and_torch_fidelity() {
    let expected = json("metrics.json");
    let features = tensors("features-narrow.safetensors");
    for k in [3, 5] {
        let found = neighbour_scores(&features["generated"], &features["reference"], k).unwrap();
        let pairs = [
            ("precision", found.precision),
            ("recall", found.recall),
            ("density", found.density),
            ("coverage", found.coverage),
        ];
        for (name, value) in pairs {
            assert_near(name, value, number(&expected, &format!("/narrow/prdc/{k}/{name}")), 1e-9);
        }
    }
}

/// With images of the same distribution the true distance is zero, so all of it is bias. A single
/// estimate is off by a fifth, hence the mean of several.
#[test]
fn bias_of_few_images_is_estimated() {
    const DRAWS: usize = 12;
    tch::manual_seed(i64::try_from(tidemill_testing::seed()).unwrap());
    let draw = |count| Tensor::randn([count, 16], (Kind::Double, Device::Cpu));
    let reference = Moments::of(&draw(200_000)).unwrap();
    let reference = FrechetReference::new(&reference).unwrap();
    let (mut distances, mut biases) = (0.0, 0.0);
    for _ in 0..DRAWS {
        let few = draw(400);
        let distance = reference.distance(&Moments::of(&few).unwrap()).unwrap();
        distances += distance;
        biases += reference.bias(&few, distance).unwrap();
    }
    println!("{DRAWS} distances {distances:.3}, biases {biases:.3}");
    assert!((0.7..1.4).contains(&(biases / distances)));
}

/// Fewer images than features: covariances without full rank.
#[test]
fn frechet_distance_of_deficient_covariances_is_finite_and_exact() {
    let options = (Kind::Double, Device::Cpu);
    tch::manual_seed(i64::try_from(tidemill_testing::seed()).unwrap());
    let few = Tensor::randn([5, 64], options);
    let moments = Moments::of(&few).unwrap();
    assert!(frechet_distance(&moments, &moments).abs() < 1e-6);
    let moved = Moments::of(&(few + 2.0)).unwrap();
    assert_near("moved", frechet_distance(&moved, &moments), 4.0 * 64.0, 1e-6);
}

/// One direction varies much and all others little, as networks' features do. The covariances commute,
/// so the distance is known.
#[test]
fn frechet_distance_counts_directions_that_vary_little() {
    let options = (Kind::Double, Device::Cpu);
    tch::manual_seed(i64::try_from(tidemill_testing::seed()).unwrap());
    let (rotation, _) = Tensor::linalg_qr(&Tensor::randn([256, 256], options), "reduced");
    let moments = |little: f64| {
        let variances = Tensor::full([256], little, options);
        let _ = variances.get(0).fill_(1e4);
        let covariance = (&rotation * variances).mm(&rotation.transpose(0, 1));
        Moments { count: 1000, mean: Tensor::zeros([256], options), covariance }
    };
    // 255 times the square of the difference of standard deviations.
    assert_near("distance", frechet_distance(&moments(4e-4), &moments(1e-4)), 255.0 * 1e-4, 1e-6);
}

#[test]
fn too_few_images_and_other_widths_are_refused() {
    let options = (Kind::Float, Device::Cpu);
    let features = |n, d| Tensor::randn([n, d], options);
    let message = Moments::of(&features(1, 4)).unwrap_err().to_string();
    assert!(message.contains("at least 2 images"), "{message}");
    let message = kid(&features(9, 4), &features(10, 4), 1, 10, 0).unwrap_err().to_string();
    assert!(message.contains("at least 10 images") && message.contains("9"), "{message}");
    let message = neighbour_scores(&features(5, 4), &features(10, 4), 5).unwrap_err().to_string();
    assert!(message.contains("at least 6 images"), "{message}");
    let message = cmmd(&features(5, 4), &features(10, 5)).unwrap_err().to_string();
    assert!(message.contains("width 4") && message.contains("width 5"), "{message}");
}
