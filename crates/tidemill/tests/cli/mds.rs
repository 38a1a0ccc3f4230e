//! Latents exported to MDS and imported again: the values stay the same, also if several imports
//! run at the same time. An import refuses what it cannot know.

use std::path::Path;

use half::f16;
use half::slice::HalfFloatSliceExt;
use serde_json::Value;
use tidemill_store::mds::{Column, MdsWriter, WriteOptions};
use tidemill_store::{Bucket, Dataset, Location, Split};
use tidemill_train::{Draw, Purpose};

use crate::common::{models_folder, run_verb, tidemill_json, write_run};

const FACTOR: &str = "0.18215";

fn run_mds(arguments: &[&str]) -> (i32, Value) {
    tidemill_json(&[&["mds"], arguments].concat())
}

fn import(from: &str, to: &str, more: &[&str]) -> (i32, Value) {
    let models = models_folder().display().to_string();
    run_mds(&[&["import", from, "--to", to, "--models", &models, "--scaled-by", FACTOR], more].concat())
}

fn decode_f16(bytes: &[u8]) -> Vec<f32> {
    let halves: Vec<f16> = bytes.as_chunks().0.iter().map(|value| f16::from_le_bytes(*value)).collect();
    halves.to_f32_vec()
}

/// The latent samples that a run with this seed draws in its first epoch.
fn draw_samples(moments: &[u8], ids: &[u64], seed: u64) -> Vec<f32> {
    let moments = decode_f16(moments);
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
fn exported_latents_are_imported_with_the_same_values() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let run = write_run(folder.path(), 96);
    assert_eq!(tidemill_json(&["preprocess", &run]).0, 0);
    let original = Dataset::open(&path("out/dataset")).unwrap();
    let export = ["export", &run, "--to", &path("mds"), "--latents", "sample", "--seed", "7"];
    let export = [&export[..], &["--scaled-by", FACTOR, "--zstd", "3", "--shard-size", "60 KB"]].concat();
    let (code, exported) = run_mds(&export);
    let kept = original.totals().unwrap().rows.kept;
    assert_eq!((code, &exported["exported"]["samples"]), (0, &Value::from(kept)), "{exported}");
    let (code, error) = run_mds(&export);
    assert_eq!(code, 2, "a finished folder is not overwritten: {error}");

    // Two imports at the same time, as on two machines.
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
    assert_same_samples(&original, &imported);

    let commits = Path::new(&path("imported")).join("commits");
    let some = std::fs::read_dir(&commits).unwrap().next().unwrap().unwrap().path();
    std::fs::remove_file(some).unwrap();
    let (code, result) = import(&path("mds"), &path("imported"), &[]);
    assert_eq!((code, &result["shards"]["done"]), (0, &Value::from(1)), "{result}");
    assert_same_samples(&original, &Dataset::open(&path("imported")).unwrap());

    let (code, error) = import(&path("mds"), &path("out/dataset"), &[]);
    assert!(code == 2 && error.to_string().contains("preprocess` made"), "{error}");
    let options = ["--latents", "sample", "--scaled-by", FACTOR];
    assert_eq!(run_mds(&[&["export", &run, "--to", &path("other")], &options[..]].concat()).0, 0);
    let (code, error) = import(&path("other"), &path("imported"), &[]);
    assert!(code == 2 && error.to_string().contains("import into another folder"), "{error}");
    std::fs::create_dir(path("trained")).unwrap();
    std::fs::rename(path("imported"), path("trained/dataset")).unwrap();
    let output = format!("output={}", path("trained"));
    let (code, error) = tidemill_json(&["preprocess", &run, "--set", &output]);
    assert!(code == 2 && error.to_string().contains("mds import` made"), "{error}");
    // A run trains on the imported dataset.
    let phase = "train.phase=[{resolution = 64, steps = 2}]";
    let settings = [&output, phase, "train.global_batch=4", "train.micro_batch=4"];
    let (code, result) = run_verb("train", &run, &settings);
    assert_eq!((code, &result["steps"]), (0, &Value::from(2)), "{result}");
}

/// Asserts that the imported latents are samples of the original's moments.
fn assert_same_samples(original: &Dataset, imported: &Dataset) {
    let (ours, theirs) = (original.spec(), imported.spec());
    assert_eq!((&ours.models, ours.scaling_factor), (&theirs.models, theirs.scaling_factor));
    assert_eq!(theirs.latents_kind, "sample");
    assert_eq!(original.empty_caption(), imported.empty_caption());
    for resolution in [32, 64] {
        let bucket = Bucket::square(resolution);
        let all = |dataset: &Dataset| dataset.read_tensors(Split::Train, bucket, usize::MAX).unwrap();
        let (before, after) = (all(original), all(imported));
        assert_eq!(before.sample_ids.len(), after.sample_ids.len());
        // Both datasets are in the order of their files, and the export keeps the order.
        assert!(before.text == after.text);
        let expected = draw_samples(&before.latents, &before.sample_ids, 7);
        for (found, expected) in decode_f16(&after.latents).into_iter().zip(expected) {
            // The values were scaled, rounded to f16, scaled back and rounded again.
            assert!((found - expected).abs() <= 1e-3 * expected.abs() + 1e-6, "{found} for {expected}");
        }
    }
}

#[test]
fn import_refuses_shards_that_do_not_match_the_models() {
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
        serde_json::from_slice(&std::fs::read(models_folder().join("text_encoder/config.json")).unwrap())
            .unwrap();
    let text = vec![0x3c; 2 * 77 * models["hidden_size"].as_u64().unwrap() as usize];
    let channels: Value =
        serde_json::from_slice(&std::fs::read(models_folder().join("vae/config.json")).unwrap()).unwrap();
    let (blocks, channels) =
        (channels["block_out_channels"].as_array().unwrap().len(), &channels["latent_channels"]);
    let cells = 64 >> (blocks - 1);
    let latents = vec![0x3c; 2 * channels.as_u64().unwrap() as usize * cells * cells];
    let columns = [("caption", "str"), ("caption_latents", "bytes"), ("latents_64", "bytes")];
    write("other_models", &columns, &[b"a red circle", &text, &latents]);
    write("no_latents", &[("caption", "str")], &[b"a red circle"]);

    let refused = |from: &str, more: &[&str], message: &str| {
        let (code, error) = import(&path(from), &path("dataset"), more);
        let text = error["error"]["message"].as_str().unwrap_or_default();
        assert!(code == 2 && text.contains(message), "{error}");
        assert!(!folder.path().join("dataset/commits").exists(), "nothing is written");
    };
    refused("other_models", &[], "pass --trust-models if they were made from other captions");
    refused("no_latents", &[], "it has no column latents_<resolution>, only caption");
    refused("missing", &[], "there is no index.json");
    let (code, error) =
        run_mds(&["import", &path("other_models"), "--to", &path("dataset"), "--models", "assets"]);
    assert!(code == 2 && error.to_string().contains("--scaled-by"), "{error}");
    let (code, result) = import(&path("other_models"), &path("dataset"), &["--trust-models"]);
    assert_eq!((code, &result["rows"]["kept"]), (0, &Value::from(10)), "{result}");
    assert_eq!(result["captions"]["checked"], Value::Null);
}
