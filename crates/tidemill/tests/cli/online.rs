//! Online training: each epoch has each row once, encoded as a dataset has it, and a resumed stream
//! continues with the rows that would have followed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tch::Device;
use tidemill::Run;
use tidemill::engine::dataset_spec::compute_model_digests;
use tidemill::online::{EncoderPlacement, OnlineData};
use tidemill_store::stream::Batch;
use tidemill_store::{Dataset, Split};
use tidemill_testing::seed;
use tidemill_train::{BatchStream, Phase, TrainingData, World};

use crate::common::{tidemill_json, write_run};

const ROWS: usize = 150;
const BATCH: usize = 14;

/// Crops and captions are drawn again in each epoch. A unit has 32 rows, or the rest of a file.
const SETTINGS: [&str; 8] = [
    "prepare.crop=random",
    "caption.template=['{caption}', 'a picture of {caption}']",
    "validation.share=0.1",
    "engine.encode.threads=1",
    "train.global_batch=14",
    "train.micro_batch=7",
    "online.window=2",
    "train.phase=[{ resolution = 64, steps = 20 }]",
];

fn settings(more: &[&str]) -> Vec<String> {
    SETTINGS.iter().chain(more).map(|setting| (*setting).to_owned()).collect()
}

fn open_online_data(run: &Run, encoders: EncoderPlacement) -> OnlineData {
    OnlineData::open(run, compute_model_digests(&run.models().unwrap()).unwrap(), Device::Cpu, encoders)
        .unwrap()
}

/// Opens the stream at its beginning, or at the position of a state.
fn open_stream(data: &OnlineData, run: &Run, state: Option<&Value>) -> Box<dyn BatchStream> {
    let world = World::single_process();
    let phase = Phase { index: 0, train: &run.file.train, seed: run.file.seed, world: &world };
    data.open_stream(&phase, state).unwrap()
}

fn next_batch(batches: &mut dyn BatchStream) -> Batch {
    assert!(batches.wait_until_ready(Duration::from_secs(60)).unwrap(), "no batch within a minute");
    batches.next_batch().unwrap()
}

/// Latents and text of a dataset's training rows by sample id.
fn read_stored_rows(folder: &Path) -> BTreeMap<u64, (Vec<u8>, Vec<u8>)> {
    use tidemill_store::stream::{Phase, ReadOptions, Stream, StreamConfig, single_dataset};
    let dataset = Dataset::open(folder.to_str().unwrap()).unwrap();
    let config = StreamConfig {
        seed: 1,
        window: 4,
        split: Split::Train,
        bucket: None,
        phase: Phase::single_dataset(64, 1),
    };
    let mut stream = Stream::open(&single_dataset(&dataset), config, ReadOptions::default(), None).unwrap();
    let rows = (0..stream.num_rows()).map(|_| stream.next_batch().unwrap());
    rows.map(|row| (row.sample_ids[0], (row.latents.to_vec(), row.text[0].to_vec()))).collect()
}

fn split_rows(batches: &[Batch]) -> Vec<(u64, u32, Vec<u8>, Vec<u8>)> {
    let of = |batch: &Batch| {
        let n = batch.sample_ids.len();
        let (latents, text) = (batch.latents.len() / n, batch.text[0].len() / n);
        let row = |i: usize| {
            let [latents, text] = [(&batch.latents, latents), (&batch.text[0], text)]
                .map(|(all, n)| all[i * n..(i + 1) * n].to_vec());
            (batch.sample_ids[i], batch.epochs[i], latents, text)
        };
        (0..n).map(row).collect::<Vec<_>>()
    };
    batches.iter().flat_map(of).collect()
}

#[test]
fn each_epoch_has_each_row_once_and_the_first_epoch_equals_the_dataset() {
    let folder = tempfile::tempdir().unwrap();
    let file = write_run(folder.path(), ROWS);
    // On some CPUs the last bits of a row depend on the size of its encode batch, and a second
    // resolution would change the batches.
    let overrides = settings(&["prepare.resolutions=[64]"]);
    let flags: Vec<&str> = overrides.iter().flat_map(|setting| ["--set", setting]).collect();
    let (code, offline) = tidemill_json(&[&["preprocess", &file][..], &flags].concat());
    assert_eq!(code, 0, "{offline}");
    let stored = read_stored_rows(&folder.path().join("out/dataset"));
    let run = Run::open(Path::new(&file), &overrides).unwrap();
    let data = open_online_data(&run, EncoderPlacement::LocalDevices(vec![Device::Cpu]));
    let mut stream = open_stream(&data, &run, None);
    let taken: Vec<Batch> =
        (0..(2 * stored.len()).div_ceil(BATCH)).map(|_| next_batch(&mut *stream)).collect();
    let mut rows = split_rows(&taken);
    let second = rows.split_off(stored.len());
    let order: Vec<u64> = rows.iter().map(|row| row.0).collect();
    assert_ne!(order, stored.keys().copied().collect::<Vec<_>>());
    assert_eq!(order.iter().copied().collect::<BTreeSet<_>>(), stored.keys().copied().collect());
    for (id, epoch, latents, text) in &rows {
        assert_eq!((*epoch, latents, text), (0, &stored[id].0, &stored[id].1));
    }
    let second = &second[..stored.len()];
    assert_eq!(second.iter().map(|row| row.0).collect::<BTreeSet<_>>(), stored.keys().copied().collect());
    assert!(second.iter().all(|row| row.1 == 1));
    assert_ne!(
        second.iter().map(|row| row.0).collect::<Vec<_>>(),
        order,
        "the second epoch has another order"
    );
    let same = second.iter().filter(|row| row.2 == stored[&row.0].0).count();
    assert!(same < stored.len() / 2, "{same} of {} crops are unchanged", stored.len());
    // Half of the rows get the same template again.
    let others = second.iter().filter(|row| row.3 != stored[&row.0].1).count();
    let about_half = stored.len() / 4..=3 * stored.len() / 4;
    assert!(about_half.contains(&others), "{others} of {} texts changed", stored.len());
}

#[test]
fn resumed_stream_continues_with_the_following_rows() {
    let folder = tempfile::tempdir().unwrap();
    let file = write_run(folder.path(), ROWS);
    let run = Run::open(Path::new(&file), &settings(&["engine.encode.workers=2"])).unwrap();
    let stop = 1 + seed() as usize % 18;
    let mut orders = Vec::new();
    for encoders in [EncoderPlacement::LocalDevices(vec![Device::Cpu]), EncoderPlacement::Trainer] {
        let data = open_online_data(&run, encoders);
        let mut whole = open_stream(&data, &run, None);
        let all: Vec<Batch> = (0..20).map(|_| next_batch(&mut *whole)).collect();
        let mut first = open_stream(&data, &run, None);
        let before: Vec<Batch> = (0..stop).map(|_| next_batch(&mut *first)).collect();
        let state = first.state(None).unwrap();
        // Batches that were made but not taken are discarded.
        drop(first);
        let mut rest = open_stream(&data, &run, Some(&state));
        let after: Vec<Batch> = (stop..20).map(|_| next_batch(&mut *rest)).collect();
        assert_eq!(
            split_rows(&all),
            split_rows(&[before, after].into_iter().flatten().collect::<Vec<_>>()),
            "after {stop}"
        );
        assert_eq!(whole.state(None).unwrap(), rest.state(None).unwrap());
        orders.push(split_rows(&all).into_iter().map(|(id, epoch, ..)| (id, epoch)).collect::<Vec<_>>());
    }
    // The order is the same for both, so each can resume runs of the other.
    assert_eq!(orders[0], orders[1]);
}

/// The rows that a stage has processed, by the result. Asserts that the stage took time for them.
fn processed_rows(result: &Value, stage: &str) -> u64 {
    let mut stages = result["stages"].as_array().unwrap().iter();
    let found = stages.find(|one| one["stage"] == stage).unwrap();
    assert!(found["busy_seconds"].as_f64() > Some(0.0), "{found}");
    found["rows"].as_u64().unwrap()
}

#[test]
fn run_and_train_work_without_a_dataset() {
    let folder = tempfile::tempdir().unwrap();
    let file = write_run(folder.path(), ROWS);
    let run = |verb: &str, mode: &str, more: &[&str]| {
        let overrides = settings(more);
        let flags = overrides.iter().flat_map(|setting| ["--set", setting.as_str()]);
        tidemill_json(&[verb, &file, "--mode", mode].into_iter().chain(flags).collect::<Vec<_>>())
    };
    let (code, result) = run("run", "online", &["train.log_every=1", "sample.scenes=0"]);
    assert_eq!((code, &result["train"]["steps"]), (0, &20.into()), "{result}");
    let out = folder.path().join("out");
    assert!(!out.join("dataset").exists() && out.join("export/unet").exists());
    // The run has more than one epoch, so rows are prepared again.
    let counts = &result["summary"]["rows"];
    let number = |name: &str| counts[name].as_u64().unwrap();
    assert!(number("read") > ROWS as u64, "{counts}");
    assert_eq!(number("read"), number("kept") + number("rejected") + number("quarantined"));
    for stage in ["read", "prepare", "encode"] {
        assert!(processed_rows(&result["train"], stage) >= ROWS as u64, "{stage}: {result}");
    }
    let quarantine = std::fs::read_to_string(out.join("quarantine.jsonl")).unwrap();
    assert_eq!(quarantine.lines().count() as u64, number("quarantined"));
    let line: Value = serde_json::from_str(quarantine.lines().next().unwrap()).unwrap();
    assert!(line["key"].is_string() && line["reason"].is_string(), "{line}");

    // The same with two supervised workers.
    let two = format!("output={:?}", folder.path().join("two").display().to_string());
    let overrides = settings(&["train.log_every=1", "sample.scenes=0", &two]);
    let flags = overrides.iter().flat_map(|setting| ["--set", setting.as_str()]);
    let arguments = ["run", &file, "--mode", "online", "--workers", "2"];
    let (code, result) = tidemill_json(&arguments.into_iter().chain(flags).collect::<Vec<_>>());
    assert_eq!((code, &result["train"]["workers"]), (0, &2.into()), "{result}");
    assert!(folder.path().join("two/export/unet").exists());

    // Resumes in the mode in which trainer and encoders take turns.
    let longer = "train.phase=[{ resolution = 64, steps = 20 }, { resolution = 32, steps = 4 }]";
    let (code, result) = run("train", "colocated", &[longer]);
    assert_eq!((code, &result["resumed_at"], &result["steps"]), (0, &20.into(), &24.into()), "{result}");
    assert!(
        processed_rows(&result, "prepare") >= 4 * BATCH as u64
            && processed_rows(&result, "encode") >= 4 * BATCH as u64
    );

    // Resumes with an opt-out list that did not exist before.
    let list = folder.path().join("opt-out.txt");
    std::fs::write(&list, "nobody\n").unwrap();
    let opt_out = format!("filter.opt_out.keys={:?}", list.display().to_string());
    let longer = longer.replace("4 }]", "5 }]");
    let (code, result) = run("train", "online", &[&longer, &opt_out]);
    assert_eq!((code, &result["resumed_at"], &result["steps"]), (0, &24.into(), &25.into()), "{result}");

    for (setting, message) in [
        ("dedup.exact=true", "duplicates are found only with a dataset"),
        ("prepare.crop=bucket", "made of buckets only with a dataset"),
        ("online.window=0", "must be at least 1"),
        ("train.validation={ every = 5 }", "the rows that this run holds out are not stored"),
        ("filter.min_side=5000", "no row of the source can be trained on"),
        ("engine.max_bad_fraction=0.001", "rows are unreadable, more than engine.max_bad_fraction = 0.001"),
        ("prepare.flip=true", "was made with another online ([prepare])"),
    ] {
        let output = format!("output={:?}", folder.path().join("other").display().to_string());
        let more = if setting.contains("flip") { vec![setting] } else { vec![setting, &output] };
        let (code, result) = run("train", "online", &more);
        let error = result["error"]["message"].as_str().unwrap_or_default();
        assert!(code == 2 && error.contains(message), "{setting}: {code} {result}");
    }
}
