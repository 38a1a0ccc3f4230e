//! `tidemill plan`: published runs come out as published, and rates can be measured here.

use std::path::{Path, PathBuf};

use crate::common::{models_folder, tidemill_json, write_run};
use serde_json::Value;

fn example(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/plans").join(name);
    path.display().to_string()
}

fn plan(arguments: &[&str]) -> Value {
    let (code, result) = tidemill_json(&[&["plan"], arguments].concat());
    assert_eq!(code, 0, "{result}");
    result
}

/// The number at a path such as `modes.offline.hours`.
fn number(result: &Value, path: &str) -> f64 {
    let value = path.split('.').fold(result, |value, key| &value[key]);
    value.as_f64().unwrap_or_else(|| panic!("{path} is {value} in {result}"))
}

fn assert_within_a_percent(result: &Value, expected: &[(&str, f64)]) {
    for (path, expected) in expected {
        let planned = number(result, path);
        assert!((planned / expected - 1.0).abs() < 0.01, "{path}: {planned}, published {expected}");
    }
}

#[test]
fn anyscale_table_comes_out_as_published() {
    let result = plan(&[&example("anyscale-256.toml")]);
    assert_within_a_percent(
        &result,
        &[
            ("modes.colocated.images_per_second", 2811.0),
            ("modes.colocated.hours", 111.3),
            ("modes.colocated.cost", 18_192.0),
            ("modes.offline.images_per_second", 4068.0),
            ("modes.offline.hours", 76.9),
            ("modes.offline.cost", 14_753.0),
            ("modes.offline.preprocess.cost", 2183.0),
            ("modes.online.images_per_second", 4075.0),
            ("modes.online.hours", 76.8),
            ("modes.online.cost", 16_275.0),
            ("modes.online.hourly_cost", 4.0 * 40.96 + 40.0 * 1.212),
        ],
    );
    assert_eq!(
        (&result["recommended"], &result["modes"]["online"]["encoders"]),
        (&"offline".into(), &40.into())
    );
    // The modes and the recommendation come last.
    let keys: Vec<&String> = result.as_object().unwrap().keys().collect();
    assert_eq!(keys[keys.len() - 3..], ["modes", "reason", "recommended"]);
}

#[test]
fn anyscale_total_comes_out_as_published_at_both_prices() {
    let run = example("anyscale-both-phases.toml");
    let on_demand = plan(&[&run]);
    assert_within_a_percent(
        &on_demand,
        &[("modes.offline.cost", 67_405.0), ("modes.offline.gpu_hours.A100-80G", 13_165.0)],
    );
    assert_within_a_percent(
        &plan(&[&run, "--set", "plan.price=reserved"]),
        &[("modes.offline.cost", 39_511.0)],
    );
}

#[test]
fn mosaicml_run_comes_out_as_published() {
    let result = plan(&[&example("mosaicml.toml")]);
    let encoding = number(&result, "modes.offline.preprocess.hours") * 128.0;
    let training = number(&result, "modes.offline.hours") * 128.0;
    assert!((encoding / 3784.0 - 1.0).abs() < 0.01 && (training / 20_051.0 - 1.0).abs() < 0.01, "{result}");
    assert_within_a_percent(
        &result,
        &[("modes.offline.cost", 47_700.0), ("modes.offline.gpu_hours.A100", 20_051.0 + 3784.0)],
    );
}

#[test]
fn what_a_node_type_leaves_out_comes_from_the_catalog() {
    let result = plan(&[
        &example("anyscale-both-phases.toml"),
        "--set",
        "plan.trainers.node=p5.48xlarge",
        "--set",
        "plan.nodes.'p5.48xlarge'.on_demand=55.0",
    ]);
    // 32 GPUs of 697 and 171.3 images/s.
    let hours = (1_126_400_000.0 / 697.0 + 1_740_800_000.0 / 171.3) / 32.0 / 3600.0;
    assert!((number(&result, "modes.offline.hours") / hours - 1.0).abs() < 1e-9, "{result}");
    assert!((number(&result, "modes.offline.cost") / (hours * 4.0 * 55.0) - 1.0).abs() < 1e-9);
}

/// A run file for the quickstart's models, with more text.
fn write_plan(folder: &Path, more: &str) -> String {
    let path = folder.join("plan.toml");
    let text = format!(
        "models.path = \"{}\"\nprepare.resolutions = [64]\n[train]\nglobal_batch = 32\nmicro_batch = 16\n\
         [[train.phase]]\nresolution = 64\nsteps = 1000\n{more}\n",
        models_folder().display()
    );
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

const CLUSTER: &str = "trainers = { node = \"box\", nodes = 2 }\nencoders = { node = \"small\" }\n\
    nodes.box = { gpu = \"A\", gpus = 4, gpu_memory = 16, on_demand = 8 }\n\
    nodes.small = { gpu = \"B\", gpus = 1, cpus = 4, on_demand = 0.5, spot = 0.2 }\n\
    rates.A = { train = { 64 = 100 }, encode = { 64 = 300 } }\n\
    rates.B = { encode = { 64 = 250 }, prepare = 50 }\n";

#[test]
fn cluster_file_gives_modes_encoders_and_a_chart() {
    let folder = tempfile::tempdir().unwrap();
    let (run, cluster) = (write_plan(folder.path(), ""), folder.path().join("cluster.toml"));
    std::fs::write(&cluster, CLUSTER).unwrap();
    let chart = folder.path().join("chart");
    let paths = [cluster.to_str().unwrap(), chart.to_str().unwrap()];
    let result = plan(&[&run, "--cluster", paths[0], "--plot", paths[1]]);
    // 8 GPUs train 800 images/s; a small node prepares 200 of the 250 pairs/s that it could encode.
    for (path, expected) in [
        ("modes.offline.images_per_second", 800.0),
        ("modes.online.images_per_second", 800.0),
        ("modes.online.encoders", 4.0),
        ("modes.online.hourly_cost", 18.0),
        ("modes.colocated.images_per_second", 8.0 / (1.0 / 100.0 + 1.0 / 300.0)),
        ("modes.offline.hours", 32_000.0 / 800.0 / 3600.0),
    ] {
        let planned = number(&result, path);
        assert!((planned / expected - 1.0).abs() < 1e-9, "{path}: {planned}, not {expected}");
    }
    assert_eq!(result["remarks"].as_array().unwrap().len(), 0);
    let step = &result["steps"][0];
    assert_eq!(step["memory"]["available_bytes"], 16u64 << 30);
    assert!(number(step, "memory.largest_micro_batch") > 100.0, "{step}");
    let points = result["encoder_curve"]["points"].as_array().unwrap();
    assert_eq!((points.len(), &points[3]["images_per_second"]), (7, &800.0.into()));
    let files = ["svg", "png"].map(|kind| std::fs::read(chart.with_extension(kind)).unwrap());
    let svg = String::from_utf8_lossy(&files[0]).into_owned();
    assert!(svg.contains("offline</text>") && svg.contains("small that encode"), "{svg}");
}

#[test]
fn refused_plans_name_the_key_and_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let run = write_plan(folder.path(), "[plan]\nprice = \"on_demand\"\ntrainers = { node = \"none\" }");
    let (code, result) = tidemill_json(&["plan", &run]);
    let message = result["error"]["message"].as_str().unwrap_or_default();
    assert!(
        code == 2 && message.contains("there is no node type \"none\"; known are g5.2xlarge,"),
        "{result}"
    );
    assert_eq!(result["error"]["line"], 11, "{result}");
}

#[test]
fn benches_measure_rates_that_plans_use() {
    let folder = tempfile::tempdir().unwrap();
    let run = write_run(folder.path(), 96);
    let rates: PathBuf = folder.path().join("rates.toml");
    let file = rates.to_str().unwrap();
    let settings: Vec<&str> = [
        "train.phase=[{ resolution = 64, steps = 100 }]",
        "train.global_batch=8",
        "train.micro_batch=8",
        "prepare.resolutions=[64]",
        "plan.nodes.this={ gpu = \"cpu\", cpus = 2, on_demand = 1 }",
        "plan.trainers.node=this",
    ]
    .into_iter()
    .flat_map(|setting| ["--set", setting])
    .collect();
    let measure = |part: &[&str]| {
        let (code, result) = tidemill_json(
            &[&["bench"], part, &[&run], &settings, &["--gpu", "cpu", "--output", file]].concat(),
        );
        assert_eq!(code, 0, "{result}");
        number(&result["rates"][part[0]], "64")
    };
    let train = measure(&["train", "--steps", "2", "--warmup", "1"]);
    let encode = measure(&["encode", "--rows", "32", "--repeat", "1"]);
    let result = plan(&[&[run.as_str()], &settings[..], &["--rates", file]].concat());
    let planned = number(&result, "modes.offline.images_per_second");
    assert!((planned / train - 1.0).abs() < 1e-9 && encode > 0.0, "{planned} {train}");
    // One CPU prepares, encodes and trains.
    assert!(number(&result, "modes.online.images_per_second") < 1.0 / (1.0 / train + 1.0 / encode));
    assert!(number(&result, "modes.offline.preprocess.rows_per_second") < encode);
}
