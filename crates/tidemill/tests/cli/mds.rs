//! Latents to MDS and back: the same values, once each, whoever imports; and nothing is guessed.

use std::path::Path;

use half::f16;
use half::slice::HalfFloatSliceExt;
use serde_json::Value;
use tidemill_store::mds::{Column, MdsWriter, WriteOptions};
use tidemill_store::{Bucket, Dataset, Location, Split};
use tidemill_train::{Draw, Purpose};

use crate::common::{assets, tidemill_json, world};

const FACTOR: &str = "0.18215";

fn mds(arguments: &[&str]) -> (i32, Value) {
    tidemill_json(&[&["mds"], arguments].concat())
}

fn import(from: &str, to: &str, more: &[&str]) -> (i32, Value) {
    let models = assets().display().to_string();
    mds(&[&["import", from, "--to", to, "--models", &models, "--scaled-by", FACTOR], more].concat())
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let halves: Vec<f16> = bytes.as_chunks().0.iter().map(|value| f16::from_le_bytes(*value)).collect();
    halves.to_f32_vec()
}

/// The samples that a run with this seed draws in its first epoch.
fn samples(moments: &[u8], ids: &[u64], seed: u64) -> Vec<f32> {
    let moments = floats(moments);
    let row = moments.len() / ids.len();
    let mut drawn = Vec::new();
    for (row, id) in moments.chunks(row).zip(ids) {
        let (mean, log_variance) = row.split_at(row.len() / 2);
        let mut noise = vec![0.0; mean.len()];
        Draw::new(seed, 0, *id, Purpose::Moments).fill_normal(&mut noise);
        drawn.extend(mean.iter().zip(log_variance).zip(noise).map(|((m, v), n)| m + (v / 2.0).exp() * n));
    }
    drawn
}

#[test]
fn latents_go_to_mds_and_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let run = world(folder.path(), 96);
    assert_eq!(tidemill_json(&["preprocess", &run]).0, 0);
    let original = Dataset::open(&path("out/dataset")).unwrap();
    let export = ["export", &run, "--to", &path("mds"), "--latents", "sample", "--seed", "7"];
    let export = [&export[..], &["--scaled-by", FACTOR, "--zstd", "3", "--shard-size", "60 KB"]].concat();
    let (code, exported) = mds(&export);
    let kept = original.totals().unwrap().rows.kept;
    assert_eq!((code, &exported["exported"]["samples"]), (0, &Value::from(kept)), "{exported}");
    let (code, error) = mds(&export);
    assert_eq!(code, 2, "a finished folder is not written over: {error}");

    // Two at once, as on two machines.
    let results = std::thread::scope(|scope| {
        let both =
            [1, 2].map(|_| scope.spawn(|| import(&path("mds"), &path("imported"), &["--workers", "2"])));
        both.map(|thread| thread.join().unwrap())
    });
    for (code, result) in &results {
        assert_eq!((*code, &result["rows"]["kept"]), (0, &Value::from(kept)), "{result}");
        assert_eq!(result["shards"]["hashed"], result["shards"]["done"]);
    }
    assert!(
        results.iter().any(|(_, result)| result["captions"]["checked"].as_u64() > Some(0)),
        "{results:?}"
    );
    let imported = Dataset::open(&path("imported")).unwrap();
    assert!(imported.verify(|_| ()).unwrap().damaged.is_empty());
    assert_eq!(imported.totals().unwrap().units, exported["exported"]["shards"]);
    assert!(imported.totals().unwrap().units > 3);
    check(&original, &imported);

    let commits = Path::new(&path("imported")).join("commits");
    let some = std::fs::read_dir(&commits).unwrap().next().unwrap().unwrap().path();
    std::fs::remove_file(some).unwrap();
    let (code, result) = import(&path("mds"), &path("imported"), &[]);
    assert_eq!((code, &result["shards"]["done"]), (0, &Value::from(1)), "{result}");
    check(&original, &Dataset::open(&path("imported")).unwrap());

    let (code, error) = import(&path("mds"), &path("out/dataset"), &[]);
    assert!(code == 2 && error.to_string().contains("preprocess` made"), "{error}");
    let more = ["--latents", "sample", "--scaled-by", FACTOR];
    assert_eq!(mds(&[&["export", &run, "--to", &path("other")], &more[..]].concat()).0, 0);
    let (code, error) = import(&path("other"), &path("imported"), &[]);
    assert!(code == 2 && error.to_string().contains("import into another folder"), "{error}");
    std::fs::create_dir(path("trained")).unwrap();
    std::fs::rename(path("imported"), path("trained/dataset")).unwrap();
    let output = format!("output={}", path("trained"));
    let (code, error) = tidemill_json(&["preprocess", &run, "--set", &output]);
    assert!(code == 2 && error.to_string().contains("mds import` made"), "{error}");
    // A run whose dataset it is trains on it.
    let phase = "train.phase=[{resolution = 64, steps = 2}]";
    let (code, result) = tidemill_json(&[
        "train",
        &run,
        "--set",
        &output,
        "--set",
        phase,
        "--set",
        "train.global_batch=4",
        "--set",
        "train.micro_batch=4",
    ]);
    assert_eq!((code, &result["steps"]), (0, &Value::from(2)), "{result}");
}

/// Imported rows are the original's, in whatever order, with samples of its moments.
fn check(original: &Dataset, imported: &Dataset) {
    let (ours, theirs) = (original.spec(), imported.spec());
    assert_eq!((&ours.models, ours.scaling_factor), (&theirs.models, theirs.scaling_factor));
    assert_eq!(theirs.latents_kind, "sample");
    assert_eq!(original.empty_caption(), imported.empty_caption());
    for resolution in [32, 64] {
        let bucket = Bucket::square(resolution);
        let all = |dataset: &Dataset| dataset.read_tensors(Split::Train, bucket, usize::MAX).unwrap();
        let (before, after) = (all(original), all(imported));
        assert_eq!(before.sample_ids.len(), after.sample_ids.len());
        // Both are in the order of their files, and the exported ones follow the original's.
        assert!(before.text == after.text);
        let expected = samples(&before.latents, &before.sample_ids, 7);
        for (found, expected) in floats(&after.latents).into_iter().zip(expected) {
            // Scaled, rounded, unscaled and rounded again.
            assert!((found - expected).abs() <= 1e-3 * expected.abs() + 1e-6, "{found} for {expected}");
        }
    }
}

#[test]
fn an_import_believes_little() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let write = |name: &str, columns: &[(&str, &str)], values: &[&[u8]]| {
        let location = Location::open(&path(name)).unwrap();
        let columns = columns.iter().map(|(name, encoding)| Column::new(*name, *encoding)).collect();
        let mut writer = MdsWriter::create(location, columns, WriteOptions::default()).unwrap();
        (0..10).for_each(|_| writer.write(values).unwrap());
        writer.finish().unwrap();
    };
    let models: Value =
        serde_json::from_slice(&std::fs::read(assets().join("text_encoder/config.json")).unwrap()).unwrap();
    let text = vec![0x3c; 2 * 77 * models["hidden_size"].as_u64().unwrap() as usize];
    let channels: Value =
        serde_json::from_slice(&std::fs::read(assets().join("vae/config.json")).unwrap()).unwrap();
    let (blocks, channels) =
        (channels["block_out_channels"].as_array().unwrap().len(), &channels["latent_channels"]);
    let cells = 64 >> (blocks - 1);
    let latents = vec![0x3c; 2 * channels.as_u64().unwrap() as usize * cells * cells];
    let columns = [("caption", "str"), ("caption_latents", "bytes"), ("latents_64", "bytes")];
    write("others", &columns, &[b"a red circle", &text, &latents]);
    write("none", &[("caption", "str")], &[b"a red circle"]);

    let refused = |from: &str, more: &[&str], message: &str| {
        let (code, error) = import(&path(from), &path("dataset"), more);
        let text = error["error"]["message"].as_str().unwrap_or_default();
        assert!(code == 2 && text.contains(message), "{error}");
        assert!(!folder.path().join("dataset/commits").exists(), "nothing is written");
    };
    refused("others", &[], "pass --trust-models if they were made from other captions");
    refused("none", &[], "it has no column latents_<resolution>, only caption");
    refused("nowhere", &[], "there is no index.json");
    let (code, error) = mds(&["import", &path("others"), "--to", &path("dataset"), "--models", "assets"]);
    assert!(code == 2 && error.to_string().contains("--scaled-by"), "{error}");
    let (code, result) = import(&path("others"), &path("dataset"), &["--trust-models"]);
    assert_eq!((code, &result["rows"]["kept"]), (0, &Value::from(10)), "{result}");
    assert_eq!(result["captions"]["checked"], Value::Null);
}
