//! `tidemill eval`: records of checkpoints, several evaluators, resumed evaluations, folders of
//! images, and refusals before a picture is drawn.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tidemill_store::Dataset;

use crate::common::{
    command, models_folder, read_files, run_verb_ok, spawn_silent, tidemill_json, wait_until, write_run,
};

/// A run with checkpoints of steps 2 and 4, and an `[eval]` section.
pub fn trained_run(folder: &Path) -> String {
    let run = write_run(folder, 96);
    let text = std::fs::read_to_string(&run).unwrap();
    let judge = models_folder().join("judge");
    let rest = format!(
        r#"
[validation]
share = 0.3
[train]
global_batch = 6
micro_batch = 6
precision = "f32"
validation = {{ every = 2, rows = 6 }}
phase = [{{ resolution = 32, steps = 4 }}]
[checkpoint]
every = 2
[sample]
steps = 2
guidance = 2.0
method = "dpm++2m"
[eval]
prompts = "{prompts}"
scenes = 3
images = 2
guidance = [2.0, 1.0]
block = 3
neighbours = 3
lease_seconds = 2
[eval.models]
dinov2 = "{judge}"
"#,
        prompts = folder.join("prompts.csv").display(),
        judge = judge.display(),
    );
    std::fs::write(&run, text + &rest).unwrap();
    std::fs::write(
        folder.join("prompts.csv"),
        "Prompts,Category\na red star,Colors\n,\na cross,Shapes\na cross,Shapes\n",
    )
    .unwrap();
    run_verb_ok("preprocess", &run, &[]);
    run_verb_ok("train", &run, &[]);
    run
}

/// The pictures and scores of a step: everything that does not depend on who evaluated.
fn table(folder: &Path, step: u64) -> Vec<(u64, String, Vec<u8>, Option<f64>)> {
    use arrow::array::{Array, AsArray};
    use arrow::datatypes::{Float64Type, UInt64Type};
    let file = std::fs::File::open(folder.join(format!("step-{step:08}.parquet"))).unwrap();
    let reader = parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
    let mut rows = Vec::new();
    for batch in reader.build().unwrap() {
        let batch = batch.unwrap();
        let column = |name: &str| batch.column_by_name(name).unwrap();
        let scores = column("score_scene_score").as_primitive::<Float64Type>();
        for row in 0..batch.num_rows() {
            let path = column("path").as_string::<i32>().value(row);
            rows.push((
                column("index").as_primitive::<UInt64Type>().value(row),
                column("prompt").as_string::<i32>().value(row).to_owned(),
                std::fs::read(folder.join(path)).unwrap(),
                scores.is_valid(row).then(|| scores.value(row)),
            ));
        }
    }
    rows
}

#[test]
fn evaluators_share_a_run_and_draw_the_same_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let run = trained_run(folder.path());
    let alone = folder.path().join("alone");
    let together = folder.path().join("together");
    let uri = |path: &Path| format!("eval.uri={:?}", path.display().to_string());
    let result = eval(&run, &["--all", "--set", &uri(&alone)]);
    assert_eq!((&result["step"], &result["images"]), (&4.into(), &20.into()), "{result}");
    let record = &result["records"][1];
    let metrics = record["metrics"].as_object().unwrap();
    for name in ["fd_dinov2", "fd_dinov2_bias", "precision", "recall", "scene_score", "validation_loss"] {
        assert!(metrics[name].as_f64().is_some_and(f64::is_finite), "{name}: {record}");
    }
    assert_eq!(record["guidance"].as_array().unwrap().len(), 2);
    assert_eq!(record["categories"].as_object().unwrap().len(), 3, "{record}");
    assert_eq!(record["validation_loss_by_timestep"].as_array().unwrap().len(), 10);
    for file in
        ["step-00000004.json", "step-00000004-02-scenes.png", "metrics.png", "metrics.svg", "settings.json"]
    {
        assert!(alone.join(file).is_file(), "{file}");
    }
    assert_eq!(std::fs::read_to_string(alone.join("metrics.jsonl")).unwrap().lines().count(), 2);

    // A file that an evaluator was writing when it was killed.
    let claims = together.join("step-00000002/claims");
    std::fs::create_dir_all(&claims).unwrap();
    std::fs::write(claims.join("00001.0#1"), "half").unwrap();
    // Two evaluators share the work; one of them is killed in the middle of a checkpoint.
    let start = || {
        let mut evaluator = command(&["eval", &run, "--all", "--set", &uri(&together)]);
        evaluator.args(["--set", "sample.steps=2"]);
        spawn_silent(evaluator)
    };
    let (mut first, mut second) = (start(), start());
    wait_until("a committed block", || has_commit(&together));
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(second.wait().unwrap().success());
    for step in [2, 4] {
        let pictures = table(&together, step);
        assert_eq!(pictures, table(&alone, step), "step {step}");
        let indices: BTreeSet<u64> = pictures.iter().map(|row| row.0).collect();
        assert_eq!(indices, (0..20).collect());
    }
    let files = read_files(&together);
    let leftovers: Vec<&String> = files
        .iter()
        .map(|(name, _)| name)
        .filter(|name| name.contains("/blocks/") || name.contains("/claims/"))
        .collect();
    assert!(leftovers.is_empty(), "{leftovers:?}");
    assert_eq!(files.iter().filter(|(name, _)| name.contains("/pictures/")).count(), 40);

    // Nothing is left to do but what an evaluator missed that died after its last record. The best
    // step can be exported.
    std::fs::remove_file(alone.join("metrics.jsonl")).unwrap();
    let again = eval(&run, &["--all", "--set", &uri(&alone)]);
    assert_eq!(again["records"], result["records"]);
    assert_eq!(std::fs::read_to_string(alone.join("metrics.jsonl")).unwrap().lines().count(), 2);
    let export = folder.path().join("export");
    let exported = tidemill_json(&[
        "export",
        &run,
        "--best",
        "fd_dinov2",
        "--to",
        export.to_str().unwrap(),
        "--set",
        &uri(&alone),
    ]);
    let distance = |i: usize| result["records"][i]["metrics"]["fd_dinov2"].as_f64().unwrap();
    let best = if distance(0) < distance(1) { 2 } else { 4 };
    assert_eq!((exported.0, &exported.1["step"]), (0, &best.into()), "{exported:?}");

    // What cannot be drawn is counted. Prompts are two captions of held-out rows, and three scenes.
    let broken = uri(&folder.path().join("broken"));
    let settings =
        [broken.as_str(), "eval.guidance=[1e38]", "eval.images=1", "eval.prompts=captions", "eval.limit=2"];
    let settings: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    let record = &eval(&run, &settings)["records"][0];
    assert_eq!((&record["images"], &record["failed"]), (&5.into(), &5.into()), "{record}");
    assert!(record["remarks"][0].as_str().unwrap().contains("at least"), "{record}");

    // Other settings would mix with these.
    let (code, refused) = tidemill_json(&["eval", &run, "--set", &uri(&alone), "--set", "eval.images=3"]);
    assert_eq!(code, 2, "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("images = 2"), "{refused}");
}

fn eval(run: &str, arguments: &[&str]) -> Value {
    let (code, result) = tidemill_json(&[&["eval", run], arguments].concat());
    assert_eq!(code, 0, "{result}");
    result
}

/// Whether a block of any step is committed. Files come and go meanwhile.
fn has_commit(folder: &Path) -> bool {
    let list =
        |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    list(folder)
        .flat_map(|step| list(&step.join("blocks")).collect::<Vec<_>>())
        .any(|file| file.extension().is_some_and(|extension| extension == "json"))
}

/// The evaluator waits for checkpoints from before the first one until the last.
#[test]
fn an_evaluator_follows_training_and_skips_what_retention_removes() {
    let folder = tempfile::tempdir().unwrap();
    let run = trained_run(folder.path());
    let out = folder.path().join("out");
    std::fs::remove_dir_all(out.join("checkpoints")).unwrap();
    let watch = ["--set", "eval.poll_seconds=1", "--set", "checkpoint.keep=1"];
    let mut evaluator = command(&[&["eval", run.as_str(), "--watch", "--json"], &watch[..]].concat());
    let evaluator = evaluator.stdout(std::process::Stdio::piped()).spawn().unwrap();
    run_verb_ok("train", &run, &["checkpoint.keep=1"]);
    let (code, result) = crate::common::parse_output(&evaluator.wait_with_output().unwrap());
    assert_eq!((code, &result["step"]), (0, &4.into()), "{result}");

    // The records are not those of another training.
    std::fs::remove_dir_all(out.join("checkpoints")).unwrap();
    run_verb_ok("train", &run, &[]);
    let (code, refused) = tidemill_json(&["eval", &run]);
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(code == 2 && message.contains("of another checkpoint of step 4"), "{refused}");

    // While step 2 is evaluated, the checkpoint of step 4 is removed.
    std::fs::remove_dir_all(out.join("evaluations")).unwrap();
    let evaluations = out.join("evaluations");
    let mut evaluator = command(&["eval", &run, "--all", "--json", "--set", "eval.images=12"]);
    let evaluator = evaluator.stdout(std::process::Stdio::piped()).spawn().unwrap();
    wait_until("a committed block", || has_commit(&evaluations));
    std::fs::remove_file(out.join("checkpoints/step-00000004/commit.json")).unwrap();
    let (code, result) = crate::common::parse_output(&evaluator.wait_with_output().unwrap());
    assert_eq!((code, &result["skipped"]), (0, &serde_json::json!([4])), "{result}");
    assert_eq!((&result["step"], result["records"].as_array().unwrap().len()), (&2.into(), 1));
}

#[test]
fn mistakes_are_refused_before_a_picture_is_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let run = trained_run(folder.path());
    let prompts = |name: &str, content: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        format!("eval.prompts={:?}", path.display().to_string())
    };
    let cases = [
        (vec![prompts("columns.csv", "a,b\n1,2\n")], "eval.prompt_column"),
        (vec![prompts("empty.csv", "prompt\n\n")], "no prompt"),
        (vec!["eval.prompts=\"none.txt\"".into()], "none.txt"),
        (vec!["eval.metrics=[\"fid\"]".into()], "eval.models.inception"),
        (vec![format!("eval.models.clip={:?}", models_folder().display().to_string())], "config.json"),
        (vec!["eval.reference.images=1".into()], "at least 2"),
        (vec!["eval.resolution=96".into()], "prepare.resolutions"),
        (vec!["eval.block=0".into()], "at least 1"),
        (
            vec![format!("checkpoint.uri={:?}", folder.path().join("empty").display().to_string())],
            "there is none",
        ),
    ];
    for (settings, expected) in cases {
        let arguments: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting.as_str()]).collect();
        let (code, refused) = tidemill_json(&[&["eval", run.as_str()], &arguments[..]].concat());
        let message = refused["error"]["message"].as_str().unwrap();
        assert!(code == 2 && message.contains(expected), "{expected}: {refused}");
        assert!(!folder.path().join("out/evaluations/step-00000004").exists(), "{expected}");
    }
    let (code, refused) = tidemill_json(&["eval", &run, "--step", "3"]);
    assert!(code == 2 && refused["error"]["message"].as_str().unwrap().contains("[2, 4]"), "{refused}");
}

/// Before pairs are encoded, and not after training.
#[test]
fn run_refuses_mistakes_in_eval_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let run = write_run(folder.path(), 32);
    let phase = "train.phase=[{resolution = 32, steps = 2}]";
    for (setting, expected) in [
        ("eval.prompts=none.txt", "none.txt"),
        ("eval.prompts=captions", "[validation] share"),
        ("eval.scenes=2 eval.models.dinov2=none", "none/config.json"),
    ] {
        let settings = std::iter::once(phase).chain(setting.split(' '));
        let arguments: Vec<&str> = settings.flat_map(|setting| ["--set", setting]).collect();
        let (code, refused) = tidemill_json(&[&["run", run.as_str()], &arguments[..]].concat());
        let message = refused["error"]["message"].as_str().unwrap();
        assert!(code == 2 && message.contains(expected), "{expected}: {refused}");
        assert!(!folder.path().join("out").exists(), "{expected}");
    }
}

#[test]
fn a_folder_of_images_is_judged() {
    let folder = tempfile::tempdir().unwrap();
    let run = write_run(folder.path(), 64);
    run_verb_ok("preprocess", &run, &[]);
    let dataset = Dataset::open(&folder.path().join("out/dataset").display().to_string()).unwrap();
    assert!(dataset.totals().unwrap().rows.kept > 0);
    let (mine, theirs) = (folder.path().join("mine"), folder.path().join("theirs"));
    for (target, seed) in [(&mine, 1), (&theirs, 2)] {
        draw_images(target, 40, seed);
    }
    std::fs::write(mine.join("broken.png"), b"no image").unwrap();
    let model = format!("dinov2={}", models_folder().join("judge").display());
    let path = |path: &PathBuf| path.display().to_string();
    let (code, result) =
        tidemill_json(&["eval", &path(&mine), "--reference", &path(&theirs), "--model", &model]);
    assert_eq!(code, 0, "{result}");
    assert_eq!((&result["images"], &result["failed"]), (&41.into(), &1.into()), "{result}");
    assert!(result["unreadable"][0]["file"].as_str().unwrap().ends_with("broken.png"));
    assert!(result["metrics"]["fd_dinov2"].as_f64().unwrap() > 0.0, "{result}");
    let (code, same) =
        tidemill_json(&["eval", &path(&theirs), "--reference", &path(&theirs), "--model", &model]);
    assert!(code == 0 && same["metrics"]["fd_dinov2"].as_f64().unwrap().abs() < 1e-3, "{same}");
    let (statistics, table) = (folder.path().join("statistics"), folder.path().join("scores.parquet"));
    let (code, saved) =
        tidemill_json(&["eval", &path(&theirs), "--model", &model, "--save-statistics", &path(&statistics)]);
    assert_eq!((code, &saved["images"]), (0, &40.into()), "{saved}");
    let file = statistics.join("dinov2.safetensors");
    let arguments =
        ["eval", &path(&mine), "--reference", &path(&file), "--model", &model, "--table", &path(&table)];
    let (code, stored) = tidemill_json(&arguments);
    assert_eq!((code, &stored["metrics"]), (0, &result["metrics"]), "{stored}");
    assert!(table.is_file());
    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    for (arguments, expected) in [
        (vec![path(&empty)], "nothing to measure"),
        (
            vec![path(&empty), "--reference".into(), path(&theirs), "--model".into(), model.clone()],
            "there are none",
        ),
        (
            vec![path(&mine), "--model".into(), model.clone(), "--metric".into(), "fd_dinov2".into()],
            "needs --reference",
        ),
        (vec![path(&mine), "--model".into(), "dino=x".into()], "there is no network `dino`"),
        (vec![path(&mine), "--all".into()], "for a run file"),
        (vec![run.clone(), "--prompts".into(), "x".into()], "a run file has [eval]"),
    ] {
        let arguments: Vec<&str> =
            std::iter::once("eval").chain(arguments.iter().map(String::as_str)).collect();
        let (code, refused) = tidemill_json(&arguments);
        assert!(
            code == 2 && refused["error"]["message"].as_str().unwrap().contains(expected),
            "{expected}: {refused}"
        );
    }
}

/// Draws scenes as PNG files.
fn draw_images(folder: &Path, count: u64, seed: u64) {
    use tidemill_synth::{Colour, Place, Scene, Shape, Size, draw_scene};
    std::fs::create_dir(folder).unwrap();
    let colours = [Colour::Red, Colour::Blue, Colour::Green, Colour::Black];
    let shapes = [Shape::Circle, Shape::Star, Shape::Square];
    for i in 0..count {
        let pick = (i * 7 + seed * 3) as usize;
        let place = if pick.is_multiple_of(2) { Place::Center } else { Place::UpperLeft };
        let scene = Scene::plain(Size::Large, colours[pick % 4], shapes[pick % 3], place);
        let drawn = draw_scene(&scene, 64, 64).unwrap();
        let image = image::RgbImage::from_raw(64, 64, drawn.rgb).unwrap();
        image.save(folder.join(format!("{i:03}.png"))).unwrap();
    }
}
